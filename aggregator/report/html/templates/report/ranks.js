// How the page calls ranks, their lanes, and where they ran.

// Where a rank ran, in words; null if nothing is known.
export function placeOf(s) {
  const parts = [s.host, s.device_id === null ? null : `GPU ${s.device_id}`, s.pid === null ? null : `pid ${s.pid}`, s.file];
  return parts.filter((part) => part !== null).join(" · ") || null;
}

export const laneKey = (row) => `${row.rank} ${row.device_id}`;

export function laneName({ rank, device_id: device }) {
  return device === null ? `rank ${rank}` : `rank ${rank} · gpu ${device}`;
}

// The short form of a lane's name.
export function briefName({ rank, device_id: device }) {
  return device === null ? String(rank) : `${rank}·gpu ${device}`;
}
