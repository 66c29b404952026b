// A value that components can watch.

import { useEffect, useState } from "./html.js";

/** A value, and the callbacks that are told of each change of it. */
export class Store {
  constructor(value) {
    this.value = value;
    this.watchers = new Set();
  }

  set(value) {
    this.value = value;
    for (const watcher of [...this.watchers]) watcher(value);
  }

  /** Call `watcher` after each change; returns what ends it. */
  watch(watcher) {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  }
}

/** Render again whenever the store changes; returns its value. */
export function useStore(store) {
  const [value, setValue] = useState(store.value);
  useEffect(() => {
    setValue(() => store.value);
    return store.watch((next) => setValue(() => next));
  }, [store]);
  return value;
}
