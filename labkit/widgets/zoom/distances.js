// The four distances of the zoom, from the network to one gradient.

export const DISTANCES = ["network", "layer", "tensor", "gradient"];
export const DEEPEST = DISTANCES.length - 1;
