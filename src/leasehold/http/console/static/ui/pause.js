// Pause a queue, and resume it.

import { html } from "../lib/html.js";
import { patch, path, post } from "../lib/api.js";
import { DurationField, secondsOf } from "./actions.js";
import { FormDialog, openDialog, toast } from "./dialog.js";

/** What `paused_until_ms` is for a queue that is paused until an operator resumes it. */
export const FOR_EVER_MS = 253_402_300_799_000;

/** What sets a queue back to what the answer to a change says that it was; undefined if nothing was changed. */
export function undoOf(queue, { previous }, reload) {
  if (!previous) return undefined;
  return async () => {
    reload?.(await patch(path("queues", queue), previous));
  };
}

/** Have nothing received from the queue for a while. */
export function pauseQueue(queue, reload) {
  const act = async ({ time, reason }) => {
    const answer = await post(path("queues", queue, "pause"), {
      ...(time.trim() && { for_s: secondsOf(time) }),
      ...(reason.trim() && { reason: reason.trim() }),
    });
    toast("The queue is paused.", { undo: undoOf(queue, answer, reload) });
    reload?.();
  };
  openDialog(
    (close) => html`<${FormDialog} title=${`Pause ${queue}`} action="Pause" close=${close} act=${act}>
      <p>No message is delivered until the pause ends. Messages can still be put, and leased messages can be completed.</p>
      <${DurationField} name="time" label="For" required=${false} hint="Such as 15m or 2h; empty: until it is resumed." />
      <label><span>Reason (shown with the queue)</span><input name="reason" maxlength="1024" /></label>
    <//>`,
  );
}

/** Let messages be received again. */
export async function resumeQueue(queue, reload) {
  try {
    const answer = await post(path("queues", queue, "resume"));
    toast("The queue is resumed.", { undo: undoOf(queue, answer, reload) });
    reload?.();
  } catch (error) {
    toast(`The queue was not resumed: ${error.message}`, { tone: "bad" });
  }
}
