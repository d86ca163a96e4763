// The theme's search is a dialog without a name for screen readers.
for (const dialog of document.querySelectorAll(".md-search[role=dialog]")) {
  dialog.setAttribute("aria-label", "Search");
}
