// Plain text whose contrast with the nearest opaque background is below 4.5 : 1 (large text: 3 : 1).
const lum = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const rgb = s => s.match(/[\d.]+/g).map(Number);
const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0.99) return c.slice(0, 3); }
  return [255, 255, 255]; };
const poor = [];
for (const e of document.querySelectorAll("body *:not(svg *):not(script):not(style)")) {
  if (e.offsetParent === null || ![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
  const style = getComputedStyle(e), a = lum(rgb(style.color).slice(0, 3)), b = lum(behind(e));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), large = parseFloat(style.fontSize) >= 24;
  if (ratio < (large ? 3 : 4.5)) poor.push([e.tagName, e.className, e.textContent.trim().slice(0, 30), ratio.toFixed(2)]);
}
return poor;
