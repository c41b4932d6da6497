// Draws the diagrams of a page in the colours of its theme, and again when the reader changes the theme.
const diagrams = [...document.querySelectorAll("pre.mermaid")].map((element) => [element, element.textContent]);
const system = matchMedia("(prefers-color-scheme: dark)");

async function draw() {
  const chosen = document.body.dataset.theme;
  const dark = chosen === "dark" || (chosen !== "light" && system.matches);
  // In its own size: a wide diagram scrolls in its frame, rather than to shrink until nobody can read it.
  mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "default", flowchart: { useMaxWidth: false } });
  for (const [element, text] of diagrams) {
    element.removeAttribute("data-processed");
    element.textContent = text;
  }
  await mermaid.run({ nodes: diagrams.map(([element]) => element) });
}

document.addEventListener("DOMContentLoaded", () => {
  draw();
  system.addEventListener("change", draw);
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
});
