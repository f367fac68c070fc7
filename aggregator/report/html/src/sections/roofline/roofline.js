// The roofline.
import { element } from "../../../templates/report/dom.js";
import { formatBytes, formatFlops, formatNs, formatNumber } from "../../../templates/report/format.js";
import { numbers } from "../../../templates/report/axes.js";
import { scatter } from "../../../templates/report/scatter.js";

export function drawRoofline(data) {
  const of = data.roofline_of;
  const points = (of === "kernel" ? data.kernel_stats : data.op_stats).filter((r) => r.flops > 0 && r.bytes > 0 && r.flops_ns > 0)
    .map((r) => ({ ...r, intensity: r.flops / r.bytes, rate: (r.flops / r.flops_ns) * 1e9 }));
  const largest = Math.max(...points.map((p) => p.total_ns));
  const roofs = data.devices.map((d) => {
    const [flat, slope] = [d.peak_flops, d.peak_bytes_per_s];
    const knee = flat && slope ? flat / slope : null;
    const at = (x) => Math.min(flat || Infinity, slope ? slope * x : Infinity);
    return { flat, knee, name: `${d.name}: ${flat ? formatFlops(flat) : "arithmetic limit unknown"}, ${slope ? formatBytes(slope) + "/s" : "memory limit unknown"}`,
      line: (x0, x1) => [x0, ...(knee && knee > x0 && knee < x1 ? [knee] : []), x1].map((x) => [x, at(x)]) };
  });
  const { box } = scatter({
    label: "Roofline", xLabel: "arithmetic intensity, FLOPs by byte", yLabel: "FLOP/s", formatX: formatNumber, formatY: formatFlops, baseX: 10, roofs,
    points: () => points.map((p) => ({ x: p.intensity, y: p.rate, kind: "compute", r: 3 + 7 * Math.sqrt(p.total_ns / largest), focus: points.length < 100,
      lines: () => [p.name, `${formatFlops(p.rate)} at ${formatNumber(p.intensity)} FLOPs per byte${p.bound ? ` or less: ${p.bound}` : ""}`, `${formatNs(p.total_ns)} in total`] })),
  });
  return [element("p", { class: "hint" }, `Each point is one ${of}, summed over calls and ranks. Its area grows with its time.`), box,
    numbers("The numbers behind this picture", [of, "FLOPs by byte", "FLOP/s", "time"], points.map((p) => [p.name, formatNumber(p.intensity), formatFlops(p.rate), formatNs(p.total_ns)]))];
}
