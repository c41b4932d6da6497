// Loaded into Airflow's own window by the page, which Airflow shows in an iframe: that one may neither navigate its
// window nor open another, and ends with the first step away from it. What is defined here outlives it.
"use strict";
window.tidegate = {
  open(href) {
    window.open(href, "_blank", "noopener");
  },
  show(href, form) {
    history.pushState(null, "", href);
    dispatchEvent(new PopStateEvent("popstate"));
    if (!form) return;
    this.when("[data-testid=trigger-dag-button]", (button) => button.click());
    // Airflow's form takes no values from an address, and React hears of a value only by an event.
    for (const [name, value] of Object.entries(form))
      this.when(`#element_${name}`, (input) => {
        Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(input, value);
        input.dispatchEvent(new Event("input", { bubbles: true }));
      });
  },
  when(selector, act) {
    const until = Date.now() + 15000;
    const timer = setInterval(() => {
      const found = document.querySelector(selector);
      if (found || Date.now() > until) { clearInterval(timer); if (found) act(found); }
    }, 100);
  },
};
