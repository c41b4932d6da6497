// The page loads this into Airflow's own window. Airflow shows the page in an iframe, which may neither navigate the
// window nor open another one, and which is removed when the user navigates away. This script outlives it.
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
    // Airflow's form takes no values from the address, and React notices a value only through an event.
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
