// Asks the theme's own search, which is a web worker, as its page does.
const { readFileSync } = require("fs");
const [worker, index, ...queries] = process.argv.slice(2);

globalThis.self = globalThis;
let answered;
const ask = (message) =>
  new Promise((resolve) => {
    answered = resolve;
    self.onmessage({ data: message });
  });
self.postMessage = ({ data }) => answered(data);
new Function(readFileSync(worker, "utf8"))();

(async () => {
  await ask({ type: 0, data: JSON.parse(readFileSync(index, "utf8")) });
  const filter = { input: { type: "operator", data: { operator: "and", operands: [] } } };
  const items = JSON.parse(readFileSync(index, "utf8")).items;
  const found = [];
  for (const input of queries) {
    const { items } = await ask({ type: 2, data: { input, filter } });
    found.push(items.map((item) => item.value?.location ?? JSON.stringify(item)));
  }
  console.log(JSON.stringify(found));
})();
