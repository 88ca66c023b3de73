// What the scripts of all pages use: packed data, numbers with units, safe text.
"use strict";

// The bytes of a script with gzip as base64.
async function weftUnpack(script) {
  const text = atob(script.textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(plain).arrayBuffer();
}

// A number with a prefix of its unit: "1.54 s".
function weftQuantity(value, unit) {
  if (!(Math.abs(value) > 0)) return `0 ${unit}`;
  const steps = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""],
                 [1e-3, "m"], [1e-6, "u"], [1e-9, "n"]];
  const [size, prefix] = steps.find(([s]) => Math.abs(value) >= s * 0.9995) || steps[8];
  return `${Number((value / size).toPrecision(4))} ${prefix}${unit}`;
}

// Text that is safe inside HTML.
const weftSafe = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
