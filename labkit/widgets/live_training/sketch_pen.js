// The pen of the sketch: the places that it can have on the picture of the losses.

import { lossRange } from "../base/plot.js";

/** @import { Figure } from "../base/canvas.js" */
/** @import { Panel } from "../base/plot.js" */
/** @import { RunStore } from "./knobs.js" */
/** @import { RunPoints, RunState } from "./plot.js" */

/**
 * The place of the pen.
 *
 * @typedef {object} Pen
 * @property {number} step
 * @property {number} loss
 * @property {boolean} down Whether it draws when it is moved.
 */

/**
 * The picture that is drawn over.
 *
 * @typedef {object} Paper
 * @property {Figure} picture
 * @property {() => Panel} panel The panel of the losses.
 * @property {number} right The room on the right of the axis, in pixels.
 * @property {(state: RunState, points: RunPoints) => number[][]} losses Returns all losses in it.
 */

// The numbers of places of the pen along the axis of steps, and of its steps by arrow keys from the
// lowest loss to the highest.
const PEN_COLUMNS = 80;
const PEN_ROWS = 24;
// `lossRange` leaves a factor of 1.03 between a loss and the end of the axis. A sketched loss
// nearer to the end would make the axis longer while it is drawn.
const PEN_MARGIN = 1.031;

/** The places that the pen can have on the picture, whose axes may change meanwhile. */
export class PenPlaces {
  /**
   * @param {RunStore} store
   * @param {Paper} paper
   */
  constructor(store, paper) {
    this.store = store;
    this.paper = paper;
  }

  /** Return the number of steps on the axis. */
  total() {
    return this.store.state?.total ?? 1;
  }

  /** Return the distance in steps of two places of the pen. */
  column() {
    return Math.max(1, Math.ceil(this.total() / PEN_COLUMNS));
  }

  /** Return the ends of the axis of losses. */
  range() {
    const { state, points } = this.store;
    return lossRange(...(state ? this.paper.losses(state, points) : []));
  }

  /**
   * Return the step of the nearest place of the pen.
   *
   * @param {number} step
   */
  onGrid(step) {
    const nearest = Math.round(step / this.column()) * this.column();
    return Math.min(this.total(), Math.max(1, nearest));
  }

  /**
   * Return the nearest loss that the pen can have.
   *
   * @param {number} loss
   */
  inRange(loss) {
    const [low, high] = this.range();
    const inside = Math.min(high / PEN_MARGIN, Math.max(low * PEN_MARGIN, loss));
    return Number(inside.toPrecision(3));
  }

  /**
   * Return the lifted pen at the first step: at the first loss of the recorded run, or in the
   * middle of the axis.
   *
   * @returns {Pen}
   */
  first() {
    const [low, high] = this.range();
    const recorded = this.store.points.recorded[0]?.loss;
    return { step: 1, loss: this.inRange(recorded ?? Math.sqrt(low * high)), down: false };
  }

  /**
   * Return the pen at a place of the picture.
   *
   * @param {number} across the share of the width, from the left
   * @param {number} up the share of the height, from the foot
   * @returns {Pen}
   */
  at(across, up) {
    const [low, high] = this.range();
    return {
      step: this.onGrid(across * this.total()),
      loss: this.inRange(low * (high / low) ** up),
      down: true,
    };
  }

  /**
   * Return the pen after a key; null for a key without a meaning.
   *
   * @param {string} key
   * @param {Pen} from
   * @returns {Pen | null}
   */
  byKey(key, { step, loss, down }) {
    const [low, high] = this.range();
    const up = (high / low) ** (1 / PEN_ROWS);
    switch (key) {
      case " ":
        return { step, loss, down: !down };
      case "ArrowLeft":
        return { step: this.onGrid(step - this.column()), loss, down };
      case "ArrowRight":
        return { step: this.onGrid(step + this.column()), loss, down };
      case "ArrowUp":
        return { step, loss: this.inRange(loss * up), down };
      case "ArrowDown":
        return { step, loss: this.inRange(loss / up), down };
    }
    return null;
  }

  /**
   * Return the place of the pen in the picture, as shares of its width and height from the upper
   * left corner.
   *
   * @param {Pen} pen
   */
  sharesOf({ step, loss }) {
    const [low, high] = this.range();
    return { across: step / this.total(), below: Math.log(high / loss) / Math.log(high / low) };
  }
}
