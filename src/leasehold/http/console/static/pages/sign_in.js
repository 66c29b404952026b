// Signing in.

import { html, useRef, useState } from "../lib/html.js";
import { post, session, signedOutBecause } from "../lib/api.js";
import { useStore } from "../lib/store.js";
import { Note, Problem } from "../ui/parts.js";

const FAILURES = {
  state: "Signing in took more than ten minutes, or was started in another browser.",
  refused: "The issuer refused the sign-in.",
  issuer: "The response came from another issuer.",
  unreachable: "The server could not reach the issuer.",
  token: "The issuer's token is invalid. See the server's log.",
  "no-role": "Your account has no role that grants read access.",
};

function failureInAddress() {
  const found = /^#sign-in-failed=([a-z-]+)/.exec(location.hash);
  return found && (FAILURES[found[1]] ?? "Signing in failed.");
}

export default function SignIn() {
  const { choices, accounts, version } = useStore(session);
  const because = useStore(signedOutBecause);
  const [kind, setKind] = useState(choices.find((choice) => choice === "key") ?? choices[0]);
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const form = useRef(null);
  const [failure] = useState(failureInAddress);

  const signIn = async (asked) => {
    setBusy(true);
    setError(null);
    try {
      const answer = await post("/console/api/session", asked);
      signedOutBecause.set("");
      if (location.hash.startsWith("#sign-in-failed")) location.hash = "#/";
      session.set(answer);
    } catch (reason) {
      setError(reason);
      setBusy(false);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    const { account, secret, queue, viewer } = form.current.elements;
    const asked = { kind, account: account.value.trim(), role: viewer.checked ? "viewer" : "operator" };
    asked[kind] = secret.value.trim();
    if (queue?.value.trim()) asked.queue = queue.value.trim();
    secret.value = "";
    signIn(asked);
  };
  const withSecret = choices.filter((choice) => choice === "key" || choice === "sas");
  return html`<main class="alone">
    <div class="card sign-in">
      <img src="/console/static/icon.svg" alt="" width="40" height="40" />
      <h1>Leasehold</h1>
      ${because && html`<${Note} tone="warning">${because}<//>`}
      ${failure && html`<${Note} tone="bad">${failure}<//>`}
      ${choices.includes("development") &&
      html`<button type="button" class="primary wide" disabled=${isBusy} onClick=${() => signIn({ kind: "development" })}>
          Use the development account
        </button>
        <p class="faint">${accounts[0]}, from this machine only</p>`}
      ${choices.includes("oidc") &&
      html`<a class="button primary wide" href="/console/api/oidc/start">Sign in with your organization</a>`}
      <form ref=${form} onSubmit=${submit}>
        <fieldset class="choice">
          <legend class="hidden-visually">Sign in with</legend>
          ${withSecret.map(
            (choice) => html`<label>
              <input type="radio" name="kind" checked=${choice === kind} onChange=${() => setKind(choice)} />
              ${choice === "key" ? "Account key" : "Shared access signature"}
            </label>`,
          )}
        </fieldset>
        <label><span>Account</span><input name="account" required autocomplete="username" value=${accounts[0] ?? ""} /></label>
        <label>
          <span>${kind === "sas" ? "Signature" : "Key"}</span>
          <input name="secret" type="password" required autocomplete="off" spellcheck="false" />
        </label>
        ${kind === "sas" && html`<label><span>Queue, if the signature is for one queue</span><input name="queue" autocomplete="off" /></label>`}
        <label class="check"><input type="checkbox" name="viewer" /> Read-only</label>
        <${Problem} error=${error} />
        <button type="submit" class="wide" disabled=${isBusy}>Sign in</button>
      </form>
      <p class="faint">Version ${version}</p>
    </div>
  </main>`;
}
