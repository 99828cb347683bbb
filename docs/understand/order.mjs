// The exact order once more, from its page alone: `node order.mjs [VECTORS.json]` checks the test vectors.
import { readFileSync } from "node:fs";

const GAMMA = 0x9e3779b97f4a7c15n;
const [LEAD, BLOCKS] = [1n, 2n]; // the first part of a key says what it is for

const u64 = (x) => BigInt.asUintN(64, x);
const mod = (x, n) => ((x % n) + n) % n; // from 0 to n - 1, also for x below 0

function mix(z) {
  z = u64((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
  z = u64((z ^ (z >> 27n)) * 0x94d049bb133111ebn);
  return z ^ (z >> 31n);
}

const extend = (key, part) => mix(u64((key ^ u64(part)) + GAMMA));
const makeKey = (...parts) => parts.reduce(extend, 0n);

/** Returns the number at a place of a keyed permutation of 0 to size - 1. */
function permute(key, size, place) {
  if (size <= 1024n) {
    const hashes = Array.from({ length: Number(size) }, (_, i) => mix(u64(key + BigInt(i + 1) * GAMMA)));
    const numbers = hashes.map((_, i) => i); // sorting keeps the order of equal hashes
    numbers.sort((a, b) => (hashes[a] < hashes[b] ? -1 : hashes[a] > hashes[b] ? 1 : a - b));
    return BigInt(numbers[Number(place)]);
  }
  let side = BigInt(Math.ceil(Math.sqrt(Number(size)))) + 1n;
  while ((side - 1n) * (side - 1n) >= size) side--; // the least whose square is at least the size
  do {
    let [left, right] = [place / side, place % side];
    for (let round = 0n; round < 6n; round++) {
      const hash = mix(u64(right * GAMMA + extend(key, round))) >> 1n;
      [left, right] = [right, mod(BigInt.asIntN(64, left + hash), side)];
    }
    place = left * side + right;
  } while (place >= size);
  return place;
}

/** Returns the records of the batch of a step, counted through all shards. */
function listNumbers({ records, batch, block, seed, epoch, step }) {
  const steps = records / batch;
  if (block > steps) block = steps;
  const blocks = records / block; // whole ones
  const first = (blocks / batch) * batch; // those of the head, of which each row has as many
  const head = (blocks / batch) * block;
  const left = blocks - first;
  const key = makeKey(BLOCKS, seed, epoch);
  const lead = (makeKey(LEAD, seed, epoch) >> 1n) % records;
  const numbers = [];
  for (let row = 0n; row < batch; row++) {
    let number, record; // the block before the permutation, and the record in it
    if (step < head) {
      const at = (step + (row * block) / batch) % head;
      [number, record] = [(at / block) * batch + row, at % block];
    } else {
      const at = (step - head) * batch + row;
      if (at < left * block) [number, record] = [first + (at % left), at / left];
      else [number, record] = [blocks, at - left * block];
    }
    if (number < blocks) number = permute(key, blocks, number);
    numbers.push((number * block + record + lead) % records);
  }
  return numbers;
}

const file = process.argv[2] ?? new URL("order_vectors.json", import.meta.url);
const { vectors } = JSON.parse(readFileSync(file, "utf8"));
for (const vector of vectors) {
  const order = { records: vector.num_records, batch: vector.batch_size, block: vector.block_records, ...vector };
  for (const name of ["records", "batch", "block", "seed", "epoch", "step"]) order[name] = BigInt(order[name]);
  const numbers = listNumbers(order).map(Number);
  if (JSON.stringify(numbers) !== JSON.stringify(vector.numbers)) {
    console.error(`Wrong: ${JSON.stringify(vector)}, got ${JSON.stringify(numbers)}`);
    process.exit(1);
  }
}
console.log(`${vectors.length} vectors hold.`);
