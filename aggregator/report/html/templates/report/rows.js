// Tables come as columns: an object with one array for each column. The charts use rows.

// The rows of a table. A column of text holds numbers of `names`.
export function rowsOf(columns, names) {
  const decoded = Object.entries(columns).map(([column, list]) => [column, list.texts ? list.texts.map((i) => (i === null ? null : names[i])) : list]);
  const [, first] = decoded[0];
  return first.map((_, i) => Object.fromEntries(decoded.map(([column, list]) => [column, list[i]])));
}

// The groups of rows with the same key, in the order of their first rows.
export function groupBy(rows, key) {
  const groups = new Map();
  for (const row of rows) {
    if (!groups.has(key(row))) groups.set(key(row), []);
    groups.get(key(row)).push(row);
  }
  return [...groups.values()];
}
