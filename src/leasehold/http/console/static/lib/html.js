// What pages are written with: Preact, its hooks, and htm for the markup. All text that pages put
// into markup becomes text nodes, so nothing that a message holds is ever read as HTML.

import { Fragment, createContext, h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export {
  useCallback,
  useContext,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "../vendor/hooks.js";
export { Fragment, createContext, render };

export const html = htm.bind(h);
