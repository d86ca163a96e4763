// Names that Python puts before a script.

/** A widget's own modules, joined: `loader.js` runs them after the shared ones. */
declare const OWN_SCRIPT: string;
