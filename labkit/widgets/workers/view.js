// What is pressed in the box of controls around this element stays there, as in the lab's other widgets: JupyterLab would
// take the arrow keys of a list and the Enter of a button for its own.

function render({ el }) {
  const owner = scope();
  const look = () => {
    const box = el.closest(".labkit-workers");
    if (box) keepKeys(box, owner);
    else frame = requestAnimationFrame(look); // not yet in the page
  };
  let frame = requestAnimationFrame(look);
  owner.add(() => cancelAnimationFrame(frame));
  return () => owner.dispose();
}

export default { render };
