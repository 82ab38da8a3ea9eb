// Asks the theme's own search, a web worker, as the page does: prints for each query the
// places that it finds, the best first.  Arguments: the worker, the index, the queries.
const { readFileSync } = require("fs");
const [worker, file, ...queries] = process.argv.slice(2);
const index = JSON.parse(readFileSync(file, "utf8"));

globalThis.self = globalThis;
let answered;
const ask = (message) =>
  new Promise((resolve) => {
    answered = resolve;
    self.onmessage({ data: message });
  });
self.postMessage = (message) => answered(message.data);
new Function(readFileSync(worker, "utf8"))();

(async () => {
  await ask({ type: 0, data: index });
  const found = [];
  for (const input of queries) {
    // As the page sends it; the worker keeps what it makes of it.
    const all = { type: "operator", data: { operator: "and", operands: [] } };
    const aggregation = { input: [{ type: "term", data: { field: "tags" } }] };
    const filter = { input: all, aggregation };
    const { items } = await ask({ type: 2, data: { input, filter } });
    found.push(items.map((item) => index.items[item.id].location));
  }
  console.log(JSON.stringify(found));
})();
