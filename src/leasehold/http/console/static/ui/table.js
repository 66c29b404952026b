// Tables of things, with order, selection and pages.

import { html, useEffect, useRef } from "../lib/html.js";

/**
 * A table.
 *
 * `columns`: a list of `{ key, label, render(row), align, sort, isMain, hint }`; `sort` is the name
 * of an order that `onSort` takes. On narrow screens each row becomes a card whose head is the
 * column with `isMain`. `keyOf(row)` is unique. With `selection` (a Set of keys) and
 * `onSelect(Set)` rows can be chosen.
 */
export function Table({
  caption,
  columns,
  rows,
  keyOf,
  sort,
  onSort,
  selection,
  onSelect,
  rowClass = () => "",
}) {
  const keys = rows.map(keyOf);
  const chosen = selection ? keys.filter((key) => selection.has(key)).length : 0;
  const choose = (key, isChosen) => {
    const next = new Set(selection);
    if (isChosen) next.add(key);
    else next.delete(key);
    onSelect(next);
  };
  const chooseAll = (isChosen) => {
    const next = new Set(selection);
    for (const key of keys) isChosen ? next.add(key) : next.delete(key);
    onSelect(next);
  };
  return html`<div class="table-wrap" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="hidden-visually">${caption}</caption>
      <thead>
        <tr>
          ${onSelect &&
          html`<th scope="col" class="choose">
            <${Checkbox}
              label="Select all rows shown"
              isChecked=${chosen > 0 && chosen === keys.length}
              isPartly=${chosen > 0 && chosen < keys.length}
              onChange=${chooseAll}
            />
          </th>`}
          ${columns.map((column) => html`<${Head} key=${column.key} ...${{ column, sort, onSort }} />`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map((row, place) => {
          const key = keys[place];
          return html`<tr key=${key} class=${rowClass(row)} aria-selected=${selection?.has(key) || undefined}>
            ${onSelect &&
            html`<td class="choose">
              <${Checkbox}
                label=${`Select ${key}`}
                isChecked=${selection.has(key)}
                onChange=${(isChosen) => choose(key, isChosen)}
              />
            </td>`}
            ${columns.map((column) => {
              const kind = `${column.align ?? ""} ${column.isMain ? "main" : ""}`;
              return html`<td key=${column.key} class=${kind} data-label=${column.label}>
                ${column.render(row)}
              </td>`;
            })}
          </tr>`;
        })}
      </tbody>
    </table>
  </div>`;
}

function Head({ column, sort, onSort }) {
  const isSorted = column.sort !== undefined && column.sort === sort;
  return html`<th
    scope="col"
    class=${column.align ?? ""}
    title=${column.hint}
    aria-sort=${isSorted ? (column.sort === "name" ? "ascending" : "descending") : undefined}
  >
    ${column.sort && onSort
      ? html`<button type="button" class="sort" onClick=${() => onSort(column.sort)}>${column.label}</button>`
      : column.label}
  </th>`;
}

function Checkbox({ label, isChecked, isPartly = false, onChange }) {
  const box = useRef(null);
  useEffect(() => {
    box.current.indeterminate = isPartly;
  }, [isPartly]);
  return html`<input
    type="checkbox"
    ref=${box}
    aria-label=${label}
    checked=${isChecked}
    onChange=${(event) => onChange(event.currentTarget.checked)}
  />`;
}
