// Dialogs, and the short notes that say what was done.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { Store, useStore } from "../lib/store.js";
import { isOperator } from "../lib/api.js";
import { Problem } from "./parts.js";

const KEPT_MS = 8_000;
const open = new Store([]);
const toasts = new Store([]);
let number = 0;

// A dialog belongs to the page that it was opened on.
addEventListener("hashchange", () => open.set([]));

/** Open a dialog: `render(close)` gives its content. Returns what closes it. */
export function openDialog(render) {
  const id = ++number;
  const close = () => open.set(open.value.filter((each) => each.id !== id));
  open.set([...open.value, { id, render, close }]);
  return close;
}

/** Say for some seconds what was done; `undo`, if given, is offered as a button. */
export function toast(text, { undo, tone = "good" } = {}) {
  const id = ++number;
  const close = () => toasts.set(toasts.value.filter((each) => each.id !== id));
  toasts.set([...toasts.value.slice(-3), { id, text, undo, tone, close }]);
  setTimeout(close, undo ? 3 * KEPT_MS : KEPT_MS);
}

/** Where dialogs and notes appear; once on the page. */
export function Dialogs() {
  const dialogs = useStore(open);
  return html`<${Toasts} />${dialogs.map(
    ({ id, render, close }) => html`<${Modal} key=${id} onClose=${close}>${render(close)}<//>`,
  )}`;
}

function Modal({ onClose, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    dialog.current.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog ref=${dialog} onClose=${onClose} aria-labelledby="dialog-title">${children}</dialog>`;
}

function Toasts() {
  const notes = useStore(toasts);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${notes.map(
      ({ id, text, undo, tone, close }) => html`<div class=${`toast ${tone}`} key=${id}>
        <span>${text}</span>
        ${undo && html`<button type="button" class="small" onClick=${() => undoAndSay(undo, close)}>Undo</button>`}
        <button type="button" class="small quiet" aria-label="Dismiss" onClick=${close}>×</button>
      </div>`,
    )}
  </div>`;
}

async function undoAndSay(undo, close) {
  close();
  try {
    await undo();
    toast("Undone.");
  } catch (error) {
    toast(`It could not be undone: ${error.message}`, { tone: "bad" });
  }
}

/**
 * A form in a dialog.
 *
 * `act(values)` does what is asked for and may throw; when it has returned, the dialog closes.
 * `values` are the fields of the form by name. `danger` makes the button red. With `type` that text
 * must be typed in before the button works. `preview(values)` may return what would happen, as
 * content, and is asked first: the button then says so, and acts when it is pressed again.
 */
export function FormDialog({ title, children, action, act, preview, close, danger = false, type }) {
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const [shown, setShown] = useState(null);
  const [typed, setTyped] = useState("");
  const form = useRef(null);
  const mustPreview = preview !== undefined && shown === null;
  const submit = async (event) => {
    event.preventDefault();
    const values = valuesOf(form.current);
    setBusy(true);
    setError(null);
    try {
      if (mustPreview) {
        setShown(await preview(values));
      } else {
        await act(values);
        close();
        return;
      }
    } catch (reason) {
      setError(reason);
    }
    setBusy(false);
  };
  // What was shown holds for the values that it was shown for.
  const forget = () => setShown(null);
  return html`<form ref=${form} onSubmit=${submit} onInput=${preview && forget} class="dialog-form">
    <h2 id="dialog-title">${title}</h2>
    <div class="dialog-body">
      ${children}
      ${shown !== null && html`<div class="preview" role="status">${shown}</div>`}
      ${type !== undefined &&
      html`<label>
        <span>Type <code>${type}</code> to confirm</span>
        <input
          name="typed"
          autocomplete="off"
          spellcheck="false"
          value=${typed}
          onInput=${(event) => {
            event.stopPropagation();
            setTyped(event.currentTarget.value);
          }}
        />
      </label>`}
      <${Problem} error=${error} />
    </div>
    <footer>
      <button type="button" class="quiet" onClick=${close}>Cancel</button>
      <button type="submit" class=${danger ? "danger" : "primary"} disabled=${isBusy || (type !== undefined && typed !== type)}>
        ${isBusy ? "Please wait…" : mustPreview ? "Preview" : action}
      </button>
    </footer>
  </form>`;
}

function valuesOf(form) {
  const values = {};
  for (const field of form.elements) {
    if (!field.name || (field.type === "radio" && !field.checked)) continue;
    if (field.type === "checkbox") values[field.name] = field.checked;
    else if (field.type === "file") values[field.name] = field.files[0] ?? null;
    else values[field.name] = field.value;
  }
  return values;
}

/** A button for an action; it cannot be used by a viewer, and says so. */
export function ActionButton({ onClick, children, kind = "", title, disabled = false }) {
  const isAllowed = isOperator();
  return html`<button
    type="button"
    class=${kind}
    title=${isAllowed ? title : "Viewers have read-only access"}
    disabled=${disabled || !isAllowed}
    onClick=${onClick}
  >
    ${children}
  </button>`;
}
