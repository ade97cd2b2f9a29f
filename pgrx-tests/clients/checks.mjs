// What the programs in JavaScript ask of the ids that they are given.
import assert from 'node:assert/strict';

/** The ids of one column, which come as values of this type: string, bigint or number. */
export class Ids {
  constructor(type) {
    this.type = type;
    this.seen = new Set();
  }

  /** Ids in the order in which one session has taken them. */
  ofSession(ids) {
    assert.ok(ids.length > 0, 'no id was returned');
    let last = 0n;
    for (const id of ids) {
      assert.equal(typeof id, this.type, `${id} is a ${typeof id}`);
      const exact = BigInt(id);
      assert.ok(exact > last, `${id} after ${last}`);
      assert.ok(!this.seen.has(exact), `${id} came twice`);
      this.seen.add(exact);
      last = exact;
    }
  }

  /** What the runner counts. */
  report() {
    console.log(`checked ${this.seen.size} ids`);
  }
}
