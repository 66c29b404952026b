// What the bytes of a body are, as far as their beginning tells. Pure functions, without a page.

const PICTURES = [
  ["PNG", "image/png", [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]],
  ["JPEG", "image/jpeg", [0xff, 0xd8, 0xff]],
  ["GIF", "image/gif", [0x47, 0x49, 0x46, 0x38]],
];
// Known by their beginning, shown as bytes.
const BINARIES = [
  ["Arrow IPC file", [0x41, 0x52, 0x52, 0x4f, 0x57, 0x31, 0x00, 0x00]],
  ["Parquet", [0x50, 0x41, 0x52, 0x31]],
  ["gzip", [0x1f, 0x8b, 0x08]],
  ["Zstandard", [0x28, 0xb5, 0x2f, 0xfd]],
  ["ZIP", [0x50, 0x4b, 0x03, 0x04]],
  ["PDF", [0x25, 0x50, 0x44, 0x46, 0x2d]],
  ["Avro", [0x4f, 0x62, 0x6a, 0x01]],
];
const ARROW_SCHEMA = 1;
const BASE64 = /^[A-Za-z0-9+/\-_]+={0,2}$/;
/** Shorter texts are taken to be base64 too often: "test" and "orders42" are. */
const MIN_BASE64 = 12;
const LINE = 16;
/** Deeper levels are not indented further: a body can have as many as it has signs. */
const DEEPEST = 30;

/**
 * What some bytes are: `{ kind, label, ... }`.
 *
 * `kind` is `empty`, `json` (with `text` and `value`), `text` (with `text`), `image` (with `type`, a
 * media type that a browser shows as a picture and nothing else) or `bytes`. Text that is base64 has
 * `inner`, the same of what it stands for, with its `bytes`. Of a body that is not `isWhole` only the
 * beginning is looked at, so its JSON has no `value`.
 */
export function recognise(bytes, { isWhole = true, isInner = false } = {}) {
  if (bytes.length === 0) return { kind: "empty", label: "empty" };
  const picture = pictureOf(bytes);
  if (picture) return picture;
  const binary = binaryOf(bytes);
  if (binary) return { kind: "bytes", label: binary };
  const text = textOf(bytes, isWhole);
  if (text === null) return { kind: "bytes", label: "bytes" };
  const json = jsonOf(text, isWhole);
  if (json) return json;
  const inner = isInner ? null : innerOf(text, isWhole);
  return inner ? { kind: "text", label: `base64 of ${inner.label}`, text, inner } : { kind: "text", label: "text", text };
}

const beginsWith = (bytes, magic) => magic.every((value, place) => bytes[place] === value);

function pictureOf(bytes) {
  for (const [label, type, magic] of PICTURES) {
    if (beginsWith(bytes, magic)) return { kind: "image", label, type };
  }
  const isRiff = beginsWith(bytes, [0x52, 0x49, 0x46, 0x46]);
  const isWebP = isRiff && beginsWith(bytes.subarray(8), [0x57, 0x45, 0x42, 0x50]);
  return isWebP ? { kind: "image", label: "WebP", type: "image/webp" } : null;
}

function binaryOf(bytes) {
  for (const [label, magic] of BINARIES) {
    if (beginsWith(bytes, magic)) return label;
  }
  return isArrowStream(bytes) ? "Arrow IPC stream" : null;
}

// A stream begins with a continuation mark, the length of the first message's metadata (a multiple
// of 8), and a flatbuffer of it. Its table names the schema as its header.
function isArrowStream(bytes) {
  if (bytes.length < 24 || !beginsWith(bytes, [0xff, 0xff, 0xff, 0xff])) return false;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = view.getInt32(4, true);
  if (length <= 0 || length % 8 !== 0) return false;
  const table = 8 + view.getUint32(8, true);
  if (table + 4 > bytes.length) return false;
  const slots = table - view.getInt32(table, true);
  // Slots of the table: version, type of the header, header, length of the body.
  if (slots < 8 || slots + 8 > bytes.length || view.getUint16(slots, true) < 8) return false;
  const place = table + view.getUint16(slots + 6, true);
  return place < bytes.length && bytes[place] === ARROW_SCHEMA;
}

// UTF-8 without control signs, or null. A beginning may end within a letter.
function textOf(bytes, isWhole) {
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes, { stream: !isWhole });
  } catch {
    return null;
  }
  return /[\u0000-\u0008\u000e-\u001a\u001c-\u001f]/.test(text) ? null : text;
}

function jsonOf(text, isWhole) {
  const first = text.trimStart()[0];
  if (first !== "{" && first !== "[") {
    return null; // "42" and "true" are rather texts
  }
  if (!isWhole) return /^\s*(\{\s*["}]|\[)/.test(text) ? { kind: "json", label: "JSON", text } : null;
  try {
    return { kind: "json", label: "JSON", text, value: JSON.parse(text) };
  } catch {
    return null;
  }
}

function innerOf(text, isWhole) {
  let letters = text.trim().replace(/[\r\n]+/g, "");
  if (letters.length < MIN_BASE64) return null;
  if (!isWhole) letters = letters.slice(0, letters.length - (letters.length % 4));
  else if (letters.replace(/=+$/, "").length % 4 === 1) return null;
  if (!BASE64.test(letters)) return null;
  let bytes;
  try {
    const plain = letters.replaceAll("-", "+").replaceAll("_", "/");
    bytes = Uint8Array.from(atob(plain), (letter) => letter.charCodeAt(0));
  } catch {
    return null;
  }
  const inner = recognise(bytes, { isWhole, isInner: true });
  // Words happen to be base64 of meaningless bytes.
  return inner.label === "bytes" || inner.kind === "empty" ? null : { ...inner, bytes };
}

/** Lines of a hex dump: offset, 16 bytes, and what of them is ASCII. */
export function hexDump(bytes, from = 0) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += LINE) {
    const part = bytes.subarray(at, at + LINE);
    const hex = Array.from(part, (value) => value.toString(16).padStart(2, "0"));
    const ascii = Array.from(part, (value) => (value > 31 && value < 127 ? String.fromCharCode(value) : "."));
    const left = hex.slice(0, LINE / 2).join(" ").padEnd(23);
    const right = hex.slice(LINE / 2).join(" ").padEnd(23);
    lines.push(`${(from + at).toString(16).padStart(8, "0")}  ${left}  ${right}  ${ascii.join("")}`);
  }
  return lines.join("\n");
}

/**
 * JSON indented as a reader wants it, with its numbers as they were written: parsing would make
 * 12345678901234567890 another number. `text` is valid JSON, or the beginning of it.
 */
export function indent(text, step = "  ") {
  const pieces = text.match(/"(?:[^"\\]|\\.)*"?|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  let depth = 0;
  let shown = "";
  const line = () => `\n${step.repeat(Math.min(depth, DEEPEST))}`;
  pieces.forEach((piece, place) => {
    const next = pieces[place + 1];
    if (piece === "{" || piece === "[") {
      const isEmpty = next === "}" || next === "]";
      if (!isEmpty) depth += 1;
      shown += isEmpty ? piece : piece + line();
    } else if (piece === "}" || piece === "]") {
      const isEmpty = pieces[place - 1] === "{" || pieces[place - 1] === "[";
      if (!isEmpty) depth = Math.max(0, depth - 1);
      shown += isEmpty ? piece : line() + piece;
    } else if (piece === ",") {
      shown += piece + line();
    } else {
      shown += piece === ":" ? ": " : piece;
    }
  });
  return shown;
}
