// Unpack what scripts.py packed: deflate, in base 64.

export const canUnpack = "DecompressionStream" in window;

export function unpacked(text, type = "") {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream, { headers: { "Content-Type": type } });
}
