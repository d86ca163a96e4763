// A text area for code, with line numbers and indentation, which the keyboard can leave.

const INDENT = "    ";

/**
 * Create an editor in an element; `begin` gives it its text.
 *
 * @param {HTMLElement} place
 * @param {string} label what a screen reader calls it
 * @param {string} keys the id of the sentence that names its keys
 * @param {() => void} run what Ctrl+Enter does
 */
export function editorIn(place, label, keys, run) {
  const frame = document.createElement("div");
  frame.className = "site-editor";
  const numbers = document.createElement("pre");
  numbers.setAttribute("aria-hidden", "true");
  const area = document.createElement("textarea");
  area.spellcheck = false;
  area.autocapitalize = "off";
  area.setAttribute("autocorrect", "off");
  area.setAttribute("aria-label", label);
  area.setAttribute("aria-describedby", keys);
  area.wrap = "off";
  frame.append(numbers, area);
  place.append(frame);

  const numberLines = () => {
    const lines = area.value.split("\n").length;
    numbers.textContent = Array.from({ length: lines }, (_, i) => i + 1).join("\n");
    area.rows = lines;
  };
  let leaves = false; // whether the next Tab leaves the editor, after Escape
  area.addEventListener("input", numberLines);
  area.addEventListener("blur", () => {
    leaves = false;
  });
  area.addEventListener("keydown", (event) => {
    const isTab = event.key === "Tab" && !event.ctrlKey && !event.altKey && !event.metaKey;
    if (isTab && !leaves) {
      event.preventDefault();
      indent(area, event.shiftKey);
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    } else if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      insert(area, newLine(area));
    }
    // Shift belongs to Shift+Tab
    if (event.key !== "Shift") leaves = event.key === "Escape";
  });
  return {
    area,
    /**
     * Replace the whole text; Ctrl+Z brings the former one back.
     *
     * @param {string} text
     */
    replace(text) {
      area.focus();
      area.select();
      insert(area, text);
    },
    /** @param {string} text */
    begin(text) {
      area.value = text;
      numberLines();
    },
  };
}

/**
 * Replace what is selected, so that the browser can undo it.
 *
 * @param {HTMLTextAreaElement} area
 * @param {string} text
 */
function insert(area, text) {
  // deprecated, and the only way that keeps the history of a text area
  const done = document.execCommand(text ? "insertText" : "delete", false, text);
  if (done) return;
  area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

/**
 * A line break with the indentation of the current line, and one level more after a colon.
 *
 * @param {HTMLTextAreaElement} area
 */
function newLine(area) {
  const before = area.value.slice(0, area.selectionStart);
  const line = before.slice(before.lastIndexOf("\n") + 1);
  const own = /^ */.exec(line)?.[0] ?? "";
  const opens = /:\s*(#.*)?$/.test(line);
  return `\n${own}${opens ? INDENT : ""}`;
}

/**
 * Indent at the cursor, or the lines of the selection; or the reverse.
 *
 * @param {HTMLTextAreaElement} area
 * @param {boolean} back
 */
function indent(area, back) {
  const { selectionStart: start, selectionEnd: end, value } = area;
  if (!back && start === end) {
    // to the next multiple of four columns
    const column = start - (value.lastIndexOf("\n", start - 1) + 1);
    insert(area, INDENT.slice(column % INDENT.length));
    return;
  }
  const from = value.lastIndexOf("\n", start - 1) + 1;
  const lines = value.slice(from, end).split("\n");
  const moved = lines.map((line) => (back ? line.replace(/^ {1,4}/, "") : INDENT + line));
  const text = moved.join("\n");
  area.setSelectionRange(from, end);
  insert(area, text);
  if (start === end) {
    // the cursor moves with its line
    const at = Math.max(from, start - (lines[0].length - moved[0].length));
    area.setSelectionRange(at, at);
  } else {
    area.setSelectionRange(from, from + text.length);
  }
}
