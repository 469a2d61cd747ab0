// Arrays of numbers: a byte each, deflated. Each is inflated when it is first looked at and kept.

const inflated = new WeakMap();

// Promises the numbers of a blob, as payload.py describes it.
function numbersOf(blob) {
  if (!inflated.has(blob)) inflated.set(blob, inflate(blob));
  return inflated.get(blob);
}

async function inflate(blob) {
  if (!("DecompressionStream" in globalThis)) {
    throw new Error("this browser cannot unpack its numbers; browsers from 2023 on can");
  }
  const packed = Uint8Array.from(atob(blob.data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const [rows, columns] = blob.shape;
  return new Numbers(rows, columns, bytes, blob);
}

class Numbers {
  constructor(rows, columns, bytes, { scale, levels, zero, power }) {
    this.rows = rows;
    this.columns = columns;
    this.bytes = bytes;
    this.numberOf = Float32Array.from(
      { length: zero + levels + 1 },
      (_, byte) => scale * Math.sign(byte - zero) * (Math.abs(byte - zero) / levels) ** power,
    );
  }

  // The row that holds for a position; a single row holds for all of them.
  row(position) {
    const start = (this.rows === 1 ? 0 : position) * this.columns;
    return Float32Array.from(
      this.bytes.subarray(start, start + this.columns),
      (byte) => this.numberOf[byte],
    );
  }

  column(number) {
    return Float32Array.from(
      { length: this.rows },
      (_, row) => this.numberOf[this.bytes[row * this.columns + number]],
    );
  }

  meanRow() {
    const mean = new Float32Array(this.columns);
    for (let index = 0; index < this.bytes.length; index++) {
      mean[index % this.columns] += this.numberOf[this.bytes[index]] / this.rows;
    }
    return mean;
  }

  // The number of the largest unit of each row; -1 where several are largest together.
  leaders() {
    return Int32Array.from({ length: this.rows }, (_, row) => {
      const bytes = this.bytes.subarray(row * this.columns, (row + 1) * this.columns);
      const largest = Math.max(...bytes);
      const leader = bytes.indexOf(largest);
      return leader === bytes.lastIndexOf(largest) || bytes.length === 1 ? leader : -1;
    });
  }
}

// Several rows or columns of the same length, averaged.
function meanOf(rows) {
  return rows[0].map((_, index) => rows.reduce((sum, row) => sum + row[index], 0) / rows.length);
}
