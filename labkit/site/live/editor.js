// A text area for code, with line numbers and indentation, which the keyboard can leave.

const INDENT = "    ";

/**
 * Create an editor in an element; `begin` gives it its text.
 *
 * @param {HTMLElement} place
 * @param {string} label the accessible name of the editor
 * @param {string} keys the id of the element that describes its keys
 * @param {() => void} run called by Ctrl+Enter
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
  // Whether the next Tab leaves the editor: so it is after Escape.
  let leaves = false;
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
    // Shift is pressed before the Tab of Shift+Tab.
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
  // execCommand is deprecated, but no other function keeps the undo history of a text area.
  const done = document.execCommand(text ? "insertText" : "delete", false, text);
  if (done) return;
  area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

/**
 * Return a line break with the indentation of the current line, and one level more after a colon.
 *
 * @param {HTMLTextAreaElement} area
 */
function newLine(area) {
  const { selectionStart: start, value } = area;
  const line = value.slice(startOfLine(value, start), start);
  const own = /^ */.exec(line)?.[0] ?? "";
  const opens = /:\s*(#.*)?$/.test(line);
  return `\n${own}${opens ? INDENT : ""}`;
}

/**
 * Return where the line of a place in a text begins.
 *
 * @param {string} text
 * @param {number} place
 */
function startOfLine(text, place) {
  return text.slice(0, place).lastIndexOf("\n") + 1;
}

/**
 * Indent the lines of the selection; without a selection, insert blanks at the cursor.
 *
 * @param {HTMLTextAreaElement} area
 * @param {boolean} back whether to remove a level of indentation instead
 */
function indent(area, back) {
  const { selectionStart: start, selectionEnd: end, value } = area;
  const from = startOfLine(value, start);
  if (!back && start === end) {
    // The cursor moves to the next multiple of four columns.
    const column = start - from;
    insert(area, INDENT.slice(column % INDENT.length));
    return;
  }
  const lineBreak = value.indexOf("\n", end);
  const to = lineBreak < 0 ? value.length : lineBreak;
  const lines = value.slice(from, to).split("\n");
  const moved = lines.map((line) => (back ? line.replace(/^ {1,4}/, "") : INDENT + line));
  const text = moved.join("\n");
  // To delete an empty selection would delete the line break before it.
  if (text === value.slice(from, to)) return;
  area.setSelectionRange(from, to);
  insert(area, text);
  if (start === end) {
    // The cursor stays at its place in the line.
    const at = Math.max(from, start - (lines[0].length - moved[0].length));
    area.setSelectionRange(at, at);
  } else {
    area.setSelectionRange(from, from + text.length);
  }
}
