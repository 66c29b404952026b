// Advice as changes of a queue's settings, and the way back. Pure functions; what they write is what
// `leasehold analyze --apply` and `--undo` write, so either can take back what the other has set.

const MOST_BECAUSE = 1_024;

/** Whether a change is not worth making: less than a tenth, or a second. */
const isNear = (one, other) => (one == null || other == null ? one === other : Math.abs(one - other) <= Math.max(1, other / 10));

/**
 * What applying an advice changes in the settings, as a merge patch; null for nothing.
 *
 * Where workers renew, the timeout stays, and they are told a plan. What is replaced is noted in
 * `advised`, with which anybody can take it back later.
 */
export function applyPatch(advice, settings, nowMs) {
  if (!advice.available || !advice.is_enough) return null;
  const { advised_s: timeoutS, renews, renewal } = advice;
  const older = settings.advised;
  const first = renewal && Math.max(1, Math.ceil(renewal.first_s));
  const every = renewal && Math.max(1, Math.floor(renewal.every_s));
  const isSame = timeoutS === settings.visibility_timeout_s;
  if (renews) {
    if (!renewal || (older && isNear(older.first_lease_s, first) && isNear(older.renew_every_s, every))) return null;
  } else if (isSame) {
    return null;
  }
  // Advice upon advice: the way back leads to what a person had set.
  const isOurs = older && older.visibility_timeout_s === settings.visibility_timeout_s;
  const beforeS = isOurs ? (older.before_s ?? settings.visibility_timeout_s) : settings.visibility_timeout_s;
  const advised = {
    visibility_timeout_s: renews ? settings.visibility_timeout_s : timeoutS,
    first_lease_s: first ?? null,
    renew_every_s: every ?? null,
    because: advice.because.slice(0, MOST_BECAUSE),
    at_ms: nowMs,
    before_s: beforeS,
  };
  return renews ? { advised } : { visibility_timeout_s: timeoutS, advised };
}

/**
 * What takes advice back, as `{ patch, sentence }`; null if none is in force. What an operator has
 * set otherwise since stays as it is.
 */
export function undoOfAdvice(settings) {
  const { advised, adaptive, visibility_timeout_s: nowS } = settings;
  if (!advised) return null;
  const patch = { advised: null };
  let bounds = adaptive;
  const isOurBounds = advised.floor_s != null && adaptive?.floor_s === advised.floor_s && adaptive?.cap_s === advised.cap_s;
  if (isOurBounds && advised.before_floor_s != null && (advised.before_floor_s !== advised.floor_s || advised.before_cap_s !== advised.cap_s)) {
    bounds = patch.adaptive = { floor_s: advised.before_floor_s, cap_s: advised.before_cap_s };
  }
  if (advised.before_s == null || advised.visibility_timeout_s !== nowS) {
    return { patch, sentence: `The visibility timeout stays at ${nowS} s, which was set since.` };
  }
  const fitsS = bounds ? Math.min(Math.max(advised.before_s, bounds.floor_s), bounds.cap_s) : advised.before_s;
  if (fitsS === nowS) return { patch, sentence: `The visibility timeout stays at ${nowS} s, as it was before.` };
  patch.visibility_timeout_s = fitsS;
  return { patch, sentence: `The visibility timeout goes from ${nowS} s back to ${fitsS} s.` };
}
