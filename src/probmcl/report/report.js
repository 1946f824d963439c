"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const each = (selector, action, root = document) => root.querySelectorAll(selector).forEach(action);
  const percent = (part, whole) => (whole ? (100 * part / whole).toFixed(1) : "–");

  // Tables: a click or Enter on a column header sorts, the search field filters by class name.
  const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const compare = (a, b) => {
    const [x, y] = [parseFloat(a), parseFloat(b)];
    if (a === "" || b === "") return (a === "") - (b === "");
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  each("table.sortable", (table) => {
    each("thead button", (button) => button.addEventListener("click", () => {
      const header = button.closest("th"), body = table.tBodies[0];
      const ascending = header.getAttribute("aria-sort") !== "ascending";
      each("thead th[aria-sort]", (other) => other.setAttribute("aria-sort", "none"), table);
      header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [value(row, header.cellIndex), row]);
      // Missing values stay at the end in both directions.
      rows.sort(([a], [b]) => (a === "" || b === "" ? compare(a, b) : (ascending ? 1 : -1) * compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    }), table);
  });
  each("input[data-filters]", (input) => input.addEventListener("input", () => {
    const words = input.value.trim().toLowerCase();
    const table = document.getElementById(input.dataset.filters);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      row.hidden = !row.cells[0].textContent.toLowerCase().includes(words);
      shown += !row.hidden;
    }
    document.getElementById(input.dataset.filters + "-count").textContent = `${shown} of ${table.tBodies[0].rows.length} classes`;
  }));

  // Threshold explorer: counts above a threshold are sums over histogram bins.
  const above = (bins, threshold) => bins.slice(threshold).reduce((sum, count) => sum + count, 0);
  const rows = [...document.querySelectorAll("#explorer tbody tr")];
  const show = (row, tp, fp, fn, threshold) => {
    Object.assign(row.dataset, { tp, fp, fn });
    const cells = [threshold, tp + fp, tp, fp, fn, percent(tp, tp + fp), percent(tp, tp + fn)];
    cells.forEach((text, index) => { row.cells[index + 2].textContent = text; });
  };
  const total = () => {
    let [tp, fp, fn] = [0, 0, 0];
    rows.forEach(({ dataset }) => { tp += +dataset.tp; fp += +dataset.fp; fn += +dataset.fn; });
    const f1 = percent(2 * tp, 2 * tp + fp + fn), labels = ((tp + fp) / data.images).toFixed(2);
    document.getElementById("explorer-total").textContent =
      `All classes together: precision ${percent(tp, tp + fp)} %, recall ${percent(tp, tp + fn)} %, F1 ${f1} %, ${labels} labels per image`;
  };
  rows.forEach((row) => {
    const slider = row.querySelector("input"), start = { ...row.dataset };
    const { positives, negatives } = data.classes[+row.dataset.index];
    const reset = () => {
      slider.value = Math.round(100 * start.threshold);
      show(row, +start.tp, +start.fp, +start.fn, (+start.threshold).toFixed(3));
    };
    row.reset = reset;
    slider.addEventListener("input", () => {
      const bin = +slider.value, tp = above(positives, bin), fp = above(negatives, bin);
      show(row, tp, fp, above(positives, 0) - tp, (bin / 100).toFixed(2));
      slider.setAttribute("aria-valuetext", (bin / 100).toFixed(2));
      total();
    });
  });
  if (rows.length) {
    total();
    document.getElementById("explorer-reset").addEventListener("click", () => { rows.forEach((row) => row.reset()); total(); });
  }

  // Gallery.
  each("#show-heat", (box) => box.addEventListener("change", () => {
    document.getElementById("gallery").classList.toggle("hide-heat", !box.checked);
  }));

  // Embedding map.
  each("#color-by", (select) => {
    const { labels, wrong, uncertainty } = data.embedding;
    const sorted = [...uncertainty].sort((a, b) => a - b);
    const quarter = [1, 2, 3].map((part) => sorted[Math.floor(part * (sorted.length - 1) / 4)]);
    const colors = {
      errors: (index) => ["", "c1", "c2", "c3"][Math.min(wrong[index], 3)],
      uncertainty: (index) => ["", "c1", "c2", "c3"][quarter.filter((limit) => uncertainty[index] > limit).length],
    };
    select.addEventListener("change", () => {
      const color = colors[select.value] ?? ((index) => (labels[index].includes(+select.value) ? "on" : ""));
      each(".map", (map) => [...map.querySelectorAll("circle")].forEach((point) => {
        point.setAttribute("class", color(+point.dataset.index));
        if (point.getAttribute("class")) map.append(point);
      }));
      each(".legend", (legend) => { legend.hidden = legend.dataset.for !== (colors[select.value] ? select.value : "label"); });
    });
  });
})();
