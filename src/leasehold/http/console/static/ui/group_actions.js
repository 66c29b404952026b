// What an operator can do with a message group: halt it, have it go on, end the hold of a session.

import { html } from "../lib/html.js";
import { path, post, remove } from "../lib/api.js";
import { FormDialog, openDialog, toast } from "./dialog.js";

const addressOf = (queue, group, verb) => path("queues", queue, "groups", group, verb);

const halt = (queue, group, reason) => post(addressOf(queue, group, "halt"), reason ? { reason } : {});
const resume = (queue, group) => post(addressOf(queue, group, "resume"));

/** Have a group give nothing until it is resumed. */
export function haltGroup(queue, group, reload) {
  openDialog(
    (close) => html`<${FormDialog}
      title="Halt the group"
      action="Halt"
      close=${close}
      act=${async ({ reason }) => {
        await halt(queue, group, reason.trim());
        toast(`The group ${group} is halted.`, { undo: () => resume(queue, group).then(reload) });
        reload();
      }}
    >
      <p>No message of <strong>${group}</strong> is delivered until the group is resumed. Messages in flight continue.</p>
      <label><span>Reason (shown with the group)</span><input name="reason" maxlength="1024" /></label>
    <//>`,
  );
}

/** Have a halted group go on. */
export function resumeGroup(queue, group, before, reload) {
  openDialog(
    (close) => html`<${FormDialog}
      title="Resume the group"
      action="Resume"
      close=${close}
      act=${async () => {
        await resume(queue, group);
        toast(`The group ${group} is resumed.`, { undo: () => halt(queue, group, before?.reason).then(reload) });
        reload();
      }}
    >
      <p>Messages of <strong>${group}</strong> are delivered again.</p>
      ${before?.message_id && html`<p>It was halted because message <code>${before.message_id}</code> was poisoned. That message stays in the poison queue.</p>`}
    <//>`,
  );
}

/** End the hold of whatever session has the group to itself. */
export function endHold(queue, group, hold, reload) {
  openDialog(
    (close) => html`<${FormDialog}
      title="End the hold"
      action="End the hold"
      danger
      close=${close}
      act=${async () => {
        await remove(addressOf(queue, group, "hold"));
        toast(`The hold of group ${group} is ended.`);
        reload();
      }}
    >
      <p><strong>${hold?.holder || "The session"}</strong> no longer holds <strong>${group}</strong>: other workers receive its messages.
        Current leases continue. The server then refuses to save the group's state for this session.</p>
    <//>`,
  );
}
