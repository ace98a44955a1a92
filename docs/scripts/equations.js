// Draw the equations of a page; without it their LaTeX is shown.
for (const place of document.querySelectorAll("div.arithmatex")) {
  const source = place.textContent.trim().replace(/^\\\[|\\\]$/g, "");
  katex.render(source, place, { displayMode: true, throwOnError: false });
}
