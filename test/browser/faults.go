package browser

// faults lists, in the page, what keeps somebody from using it.
const faults = `(() => {
  const out = [];
  const shown = e => e.getClientRects().length > 0 && getComputedStyle(e).visibility !== "hidden";
  const all = s => [...document.querySelectorAll(s)].filter(shown);
  const name = e => e.tagName.toLowerCase() + (e.id ? "#" + e.id : "") + " " + JSON.stringify((e.innerText || e.value || "").slice(0, 30));
  if (!document.documentElement.lang) out.push("the page has no language");
  if (!document.title.trim()) out.push("the page has no title");
  if (all("h1").length !== 1) out.push("the page has " + all("h1").length + " headings of the first order");
  if (!document.querySelector("main")) out.push("the page has no main part");
  if (document.documentElement.scrollWidth > innerWidth) out.push("the page scrolls sideways: " + document.documentElement.scrollWidth + " of " + innerWidth);
  for (const f of all("input:not([type=hidden]), select, textarea")) {
    if (!f.labels || f.labels.length === 0) out.push(name(f) + " has no label");
    if (f.type === "password" && !f.autocomplete) out.push(name(f) + " tells password managers nothing");
    if (f.getAttribute("aria-invalid") === "true" && !document.getElementById(f.getAttribute("aria-describedby"))) out.push(name(f) + " is wrong and does not say why");
  }
  for (const e of all("button, a")) if (!(e.innerText.trim() || e.getAttribute("aria-label"))) out.push(name(e) + " has no name");
  for (const i of all("img")) if (!i.hasAttribute("alt")) out.push(name(i) + " has no text");
  const ids = new Set();
  for (const e of document.querySelectorAll("[id]")) { if (ids.has(e.id)) out.push("two elements are called " + e.id); ids.add(e.id); }
  // Contrast of WCAG 2.2, 1.4.3: 4.5, of large text 3.
  const rgb = s => { const m = s.match(/[\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
  const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] > 0.99) return c; } return [255, 255, 255, 1]; };
  for (const e of all("body *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    const s = getComputedStyle(e), a = light(rgb(s.color).slice(0, 3)), b = light(behind(e).slice(0, 3));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), size = parseFloat(s.fontSize);
    const large = size >= 24 || size >= 18.66 && s.fontWeight >= 700;
    if (ratio < (large ? 3 : 4.5)) out.push(name(e) + " has a contrast of " + ratio.toFixed(2));
  }
  // What can be pressed is large enough for a finger: WCAG 2.2, 2.5.8, but for links in text.
  for (const e of all("button, input:not([type=hidden]), select")) {
    const r = e.getBoundingClientRect();
    if (r.height < 24 || r.width < 24) out.push(name(e) + " is " + Math.round(r.width) + " x " + Math.round(r.height));
  }
  return out;
})()`
