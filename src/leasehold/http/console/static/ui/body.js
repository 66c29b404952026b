// The body of a message: decoded as far as it can be recognised, and never as markup. Large ones are
// asked for by the operator, who is told their size first.

import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { path, request } from "../lib/api.js";
import { hexDump, indent, recognise } from "../lib/decode.js";
import * as format from "../lib/format.js";
import { Copy, Loading, Note, Problem, Section } from "./parts.js";
import { Tree } from "./tree.js";

/** Bodies up to this are shown at once; of larger ones this much is shown when it is asked for. */
export const SHOWN_BYTES = 64 * 1024;
/** Text and JSON up to this can be shown as a whole: more makes a browser slow. */
const WHOLE_BYTES = 1024 * 1024;
const HEX_BYTES = 16 * 1024;
const LOAD_MS = 300_000;
const EXTENSIONS = { json: "json", text: "txt", bytes: "bin", empty: "txt" };

/** The body of `message`, which was asked for in `queue`. */
export function Body({ queue, message }) {
  const address = path("queues", message.queue ?? queue, "messages", message.id, "body");
  const size = message.body_bytes;
  const given = useMemo(() => givenBytes(message), [size <= SHOWN_BYTES && message.body, size <= SHOWN_BYTES && message.body_base64]);
  const { loaded, error, busy, load, stop } = useLoaded(address, message);
  const bytes = given ?? loaded?.bytes ?? null;
  const isWhole = given !== null || loaded?.isWhole === true;
  const found = useMemo(() => (bytes === null ? null : recognise(bytes, { isWhole })), [bytes, isWhole]);
  const title = found ? `Body: ${found.label}, ${format.bytes(size)}` : `Body: ${format.bytes(size)}`;
  if (message.body_problem) {
    return html`<${Section} title=${title}><${Note} tone="bad">The body cannot be shown: ${message.body_problem}<//><//>`;
  }
  if (size <= SHOWN_BYTES && given === null) return html`<${Section} title=${title}><${Loading} /><//>`;
  const name = `${message.id}.${found?.kind === "image" ? found.label.toLowerCase() : EXTENSIONS[found?.kind ?? "bytes"]}`;
  const download = size > 0 && html`<a class="button" href=${address} download=${name}>Download</a>`;
  return html`<${Section} title=${title} actions=${download}>
    ${loaded && loaded.fence !== message.fence && html`<${Note}>The message has been received or changed since its body was loaded.<//>`}
    ${found === null && !busy && html`<p>The body has ${format.bytes(size)} and is loaded on request.</p>`}
    ${found !== null && !isWhole && html`<p class="faint">The first ${format.bytes(bytes.length)} of ${format.bytes(size)} are shown.</p>`}
    <${Problem} error=${error} />
    ${busy && html`<p role="status">Loading: ${format.bytes(busy.got)} of ${format.bytes(size)} <button type="button" class="small" onClick=${stop}>Stop</button></p>`}
    ${!given && !busy && html`<${Offers} ...${{ found, size, isWhole, loaded, load }} />`}
    ${found !== null && html`<${Shown} key=${`${found.kind}${isWhole}`} ...${{ found, bytes, isWhole }} />`}
  <//>`;
}

// Small bodies come with the message.
function givenBytes(message) {
  if (message.body_bytes > SHOWN_BYTES) return null;
  if (message.body != null) return new TextEncoder().encode(message.body);
  if (message.body_base64 != null) return bytesOf(message.body_base64);
  return null;
}

const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

function Offers({ found, size, isWhole, loaded, load }) {
  if (isWhole) return null;
  const isPicture = (found?.inner ?? found)?.kind === "image";
  const canBeWhole = size <= WHOLE_BYTES || isPicture;
  return html`<div class="toolbar">
    ${!loaded && html`<button type="button" onClick=${() => load(SHOWN_BYTES)}>Show the first ${format.bytes(Math.min(size, SHOWN_BYTES))}</button>`}
    ${canBeWhole && html`<button type="button" onClick=${() => load(Infinity)}>${isPicture ? "Load the picture" : "Show all of it"}</button>`}
  </div>`;
}

// What was read of the body when it was asked for: its beginning, or all of it.
function useLoaded(address, message) {
  const [state, setState] = useState({ loaded: null, error: null, busy: null });
  const running = useRef(null);
  const stop = () => {
    running.current?.abort();
    setState((before) => ({ ...before, busy: null }));
  };
  useEffect(() => () => running.current?.abort(), [address]);
  const load = async (most) => {
    running.current?.abort();
    const { fence } = message;
    const abort = (running.current = new AbortController());
    const tell = (changes) => !abort.signal.aborted && setState((before) => ({ ...before, ...changes }));
    tell({ error: null, busy: { got: 0 } });
    try {
      const answer = await request(address, { raw: true, signal: abort.signal, timeoutMs: LOAD_MS });
      const read = await readUpTo(answer.body.getReader(), most, (got) => tell({ busy: { got } }));
      tell({ loaded: { ...read, fence }, busy: null });
    } catch (error) {
      tell({ error, busy: null });
    }
  };
  return { ...state, load, stop };
}

async function readUpTo(reader, most, tell) {
  const pieces = [];
  let got = 0;
  let toldAt = 0;
  let isWhole = false;
  while (got < most) {
    const { done, value } = await reader.read();
    if (done) {
      isWhole = true;
      break;
    }
    pieces.push(value);
    got += value.length;
    if (got - toldAt > 1024 * 1024) tell((toldAt = got));
  }
  if (!isWhole) reader.cancel().catch(() => {});
  const all = new Uint8Array(await new Blob(pieces).arrayBuffer());
  return { bytes: all.subarray(0, Math.min(all.length, most)), isWhole: isWhole || all.length < most };
}

const INNER_VIEWS = { "inner-text": "Decoded text", "inner-hex": "Decoded hex" };
const VIEWS = {
  picture: "Picture",
  tree: "Folded",
  pretty: "Indented",
  text: "As sent",
  hex: "Hex",
};

// One thing can be looked at in several ways; the most telling comes first.
function Shown({ found, bytes, isWhole }) {
  const views = useMemo(() => viewsOf(found, bytes, isWhole), [found, bytes, isWhole]);
  const [view, setView] = useState(views[0]?.name);
  if (views.length === 0) return html`<p class="faint">The body is empty.</p>`;
  const current = views.find((each) => each.name === view) ?? views[0];
  return html`<div class="toolbar" role="group" aria-label="Show the body as">
      ${views.length > 1 &&
      views.map(
        (each) => html`<button type="button" class="small" key=${each.name} aria-pressed=${each.name === current.name} onClick=${() => setView(each.name)}>
          ${each.label}
        </button>`,
      )}
      ${current.copy && html`<${Copy} text=${current.copy()} />`}
    </div>
    ${current.render()}`;
}

function viewsOf(found, bytes, isWhole) {
  const add = (name, render, copy, label = VIEWS[name]) => ({ name, label, render, copy });
  const text = (content) => html`<${Text} text=${content} />`;
  const hex = add("hex", () => html`<${Hex} bytes=${bytes} />`);
  const views = [];
  if (found.inner) {
    const inner = viewsOf(found.inner, found.inner.bytes, isWhole).map((each) => ({ ...each, name: `inner-${each.name}` }));
    views.push(...inner.map((each) => ({ ...each, label: INNER_VIEWS[each.name] ?? each.label })));
  }
  if (found.kind === "image" && isWhole) views.push(add("picture", () => html`<${Picture} bytes=${bytes} found=${found} />`));
  if (found.kind === "json") {
    let indented; // once, and when it is looked at
    const pretty = () => (indented ??= indent(found.text));
    if (found.value !== undefined) views.push(add("tree", () => html`<${Tree} value=${found.value} text=${found.text} />`, pretty));
    views.push(add("pretty", () => text(pretty()), pretty));
  }
  if (found.text !== undefined) views.push(add("text", () => text(found.text), () => found.text));
  if (found.kind !== "empty") views.push(hex);
  return views;
}

// Many lines take a browser seconds to lay out: more of them come when they are asked for.
function Text({ text }) {
  const [most, setMost] = useState(SHOWN_BYTES);
  return html`<pre tabindex="0" aria-label="Text of the body">${text.slice(0, most)}</pre>
    ${text.length > most && html`<p class="more"><button type="button" class="small" onClick=${() => setMost(2 * most)}>Show more of the text</button></p>`}`;
}

function Hex({ bytes }) {
  const [most, setMost] = useState(HEX_BYTES);
  const dump = useMemo(() => hexDump(bytes.subarray(0, most)), [bytes, most]);
  return html`<pre class="hex" tabindex="0" aria-label="Bytes of the body">${dump}</pre>
    ${bytes.length > most &&
    html`<p class="more"><button type="button" class="small" onClick=${() => setMost(most + 4 * HEX_BYTES)}>Show more bytes</button></p>`}`;
}

// A picture by its bytes, in a type that can hold no script.
function Picture({ bytes, found }) {
  const [address, setAddress] = useState(null);
  const [size, setSize] = useState(null);
  const [isBroken, setBroken] = useState(false);
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([bytes], { type: found.type }));
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [bytes, found.type]);
  if (isBroken) return html`<${Note} tone="warning">The bytes begin like ${found.label}, but the picture cannot be shown.<//>`;
  if (address === null) return null;
  const measured = ({ currentTarget: image }) => setSize([image.naturalWidth, image.naturalHeight]);
  return html`<figure class="picture">
    <img src=${address} alt=${`The body as a picture (${found.label})`} decoding="async" onLoad=${measured} onError=${() => setBroken(true)} />
    ${size && html`<figcaption class="faint">${found.label}, ${size[0]} × ${size[1]} pixels</figcaption>`}
  </figure>`;
}
