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
    const until = Date.now() + 15000;
    const timer = setInterval(() => {
      const button = document.querySelector("[data-testid=trigger-dag-button]");
      if (button || Date.now() > until) { clearInterval(timer); button?.click(); }
    }, 100);
  },
};
