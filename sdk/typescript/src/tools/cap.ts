/** Text that fits: where it is too long its middle goes, as both ends of an output matter most. */
export function cap(text: string, mostChars: number): { text: string; leftOut: number } {
  if (text.length <= mostChars) return { text, leftOut: 0 };
  const head = Math.ceil(mostChars / 2);
  const tail = mostChars - head;
  const leftOut = text.length - mostChars;
  const end = tail === 0 ? "" : text.slice(-tail);
  return { text: `${text.slice(0, head)}\n[… ${String(leftOut)} characters left out …]\n${end}`, leftOut };
}
