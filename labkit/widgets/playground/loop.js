// The loop that trains a session from frame to frame of the page, in slices of time.

import { MOST_STEPS, trainSlice } from "./session.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Session } from "./session.js" */

/**
 * What the loop trains, and how far. The loop reads it at each frame, so it may change meanwhile.
 *
 * @typedef {object} LoopState
 * @property {Session} session
 * @property {boolean} running Whether the loop trains; only the loop sets it.
 * @property {number} speed The most steps in a slice: a value of SPEEDS.
 * @property {number} goal The step to which a link trains, at full speed; 0 for none.
 */

/**
 * The most steps in a slice, for each speed. Below 1, a step is done every SLOW_FRAMES frames.
 *
 * @type {Record<"fast" | "medium" | "slow", number>}
 */
export const SPEEDS = { fast: 1000, medium: 1, slow: 0.1 };
const SLOW_FRAMES = 10;
// The time between two frames of a screen with 60 Hz.
const FRAME_MS = 16;

/**
 * Return the functions that start and pause the training of a session.
 *
 * A frame of the page trains for one slice, and at full speed for more of them until the next frame
 * is due. The page handles its events between two slices. A tab in the background has no frames.
 *
 * @param {Life} life
 * @param {LoopState} state
 * @param {object} handlers
 * @param {() => void} handlers.onFrame called after the slice of each frame
 * @param {() => void} handlers.onPause called when a running loop pauses or has reached its end
 */
export function trainingLoop(life, state, { onFrame, onPause }) {
  // A message is handled after the events that came before it; a timer would wait for 4 ms.
  const channel = new MessageChannel();
  let frame = 0;
  let frameCount = 0;
  let due = 0;

  function lastStep() {
    return state.goal > 0 ? state.goal : MOST_STEPS;
  }

  function speed() {
    return state.goal > 0 ? SPEEDS.fast : state.speed;
  }

  function slice() {
    if (!state.running) return;
    trainSlice(state.session, Math.max(1, speed()), lastStep());
    if (speed() > 1 && performance.now() < due) channel.port2.postMessage(null);
  }

  function tick() {
    frameCount += 1;
    due = performance.now() + FRAME_MS;
    if (state.session.twinLosses.length >= lastStep()) {
      pause();
      return;
    }
    frame = requestAnimationFrame(tick);
    if (speed() >= 1 || frameCount % SLOW_FRAMES === 0) slice();
    onFrame();
  }

  function run() {
    if (state.running) return;
    state.running = true;
    tick();
  }

  function pause() {
    cancelAnimationFrame(frame);
    if (!state.running) return;
    state.running = false;
    state.goal = 0;
    onPause();
  }

  channel.port1.onmessage = slice;
  life.add(() => {
    pause();
    channel.port1.close();
  });
  return { run, pause };
}
