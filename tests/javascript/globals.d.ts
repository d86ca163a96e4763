// Names that Python puts before a script.

/** A widget's own modules, joined: `loader.js` runs them after the shared ones. */
declare const OWN_SCRIPT: string;

/** The widgets of a page without a kernel, by folder: what `onPage` (base/page.js) returns. */
declare var labkitWidgets: Record<string, PageWidget> | undefined;

interface PageWidget {
  (state: Record<string, unknown>, el: HTMLElement): { model: PageAnswers; remove: () => void };
  answers(state: Record<string, unknown>): boolean;
}

/** The model of a question: one choice, those of the quiz, or a loss that was sketched. */
type PageAnswers = import("../../labkit/widgets/base/model.js").Model<{
  choice: string;
  answers: Record<string, string>;
  sketched: (readonly [number, number])[];
}>;
