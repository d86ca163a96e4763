// The sentence under the histogram: the twin of `sentence` in underflow/widget.py; a browser test holds them together, word for word.

function sayFate(shares, log2Scale, layer, { kind, all_layers }, format) {
  const gradients = layer === all_layers ? `these ${kind}` : `the ${kind} of layer ${layer}`;
  const { underflowed, subnormal, normal, overflowed } = shares;
  if (underflowed + subnormal + normal + overflowed === 0) {
    return `At scale 2^${log2Scale}, ${gradients} have nothing to lose: all of them are zero already in FP32.`;
  }
  const lost = underflowed === 0 ? "none" : underflowed === 1 ? "all" : percent(underflowed);
  const said = [`${lost} of ${gradients} underflow in ${format}`];
  if (subnormal) said.push(`${percent(subnormal)} are subnormal`);
  said.push(normal ? `${percent(normal)} keep full precision` : "none keeps full precision");
  if (overflowed) said.push(`${percent(overflowed)} overflow`);
  const ending = overflowed ? "; a single infinity spoils the whole step." : ".";
  const at = `At scale 2^${log2Scale}${log2Scale === 0 ? " (no scaling)" : ""}, `;
  return `${at}${said.slice(0, -1).join(", ")} and ${said.at(-1)}${ending}`;
}
