// Addresses of pages. They are fragments, such as #/queues/orders?state=leased: the server has one
// page, and what an operator looks at is never sent to it as part of an address.

import { Store } from "./store.js";

function read() {
  const fragment = location.hash.replace(/^#\/?/, "");
  const [place, search = ""] = fragment.split("?", 2);
  const parts = place
    .split("/")
    .filter((part) => part !== "")
    .map(decode);
  return { parts, params: Object.fromEntries(new URLSearchParams(search)) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // typed by hand
  }
}

/** `parts` of the path, decoded, and `params` of the query. */
export const route = new Store(read());

addEventListener("hashchange", () => route.set(read()));

/** The address of a page: to("queues", name, { state: "leased" }). */
export function to(...parts) {
  const params = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const pairs = Object.entries(params).filter(([, value]) => value !== undefined && value !== "");
  const search = pairs.length ? `?${new URLSearchParams(pairs)}` : "";
  return `#/${parts.map(encodeURIComponent).join("/")}${search}`;
}

/** Go to a page. With `replace`, "back" does not lead to the page before. */
export function go(address, { replace = false } = {}) {
  if (replace) {
    history.replaceState(null, "", address);
    route.set(read());
  } else {
    location.hash = address;
  }
}

/** Set or remove some of the query of the page that is shown. */
export function setParams(changes) {
  const { parts, params } = route.value;
  go(to(...parts, { ...params, ...changes }), { replace: true });
}
