// "Watch them move": paths in a bent valley, and their losses, on two canvases.
(() => {
  "use strict";
  const source = new URL("moving.json", document.currentScript.src);
  const MOST = 8; // as many as there are colours
  const FIRST = ["sgd", "adamw", "lion", "adagrad", "lbfgs"];
  const [LOW, HIGH] = [-6, 2]; // decades of the loss; paths are too coarse for lower ones

  // Steps from point to point, in base64 of 16-bit numbers, which wrap as their sums do.
  function decode(text, count, scale) {
    const steps = new Int16Array(Uint8Array.from(atob(text), (x) => x.charCodeAt(0)).buffer);
    for (let i = 2; i < steps.length; i++) steps[i] += steps[i - 2];
    const point = (i) => [steps[2 * i] / scale, steps[2 * i + 1] / scale];
    const list = (length, f) => Array.from({ length }, (_, i) => f(i));
    return list(steps.length / 2 / count, (k) => list(count, (i) => point(k * count + i)));
  }

  const made = (tag, textContent) => Object.assign(document.createElement(tag), { textContent });

  function open(canvas) {
    const [width, height, dense] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio];
    [canvas.width, canvas.height] = [width * dense, height * dense];
    const pen = canvas.getContext("2d");
    pen.scale(dense, dense);
    pen.font = `12px ${getComputedStyle(canvas).fontFamily}`;
    return { pen, width, height };
  }

  function stroke(pen, points, colour, width, alpha = 1) {
    [pen.globalAlpha, pen.strokeStyle, pen.lineWidth] = [alpha, colour, width];
    pen.beginPath();
    for (const [x, y] of points) pen.lineTo(x, y);
    pen.stroke();
    pen.globalAlpha = 1;
  }

  function circle(pen, [x, y], colour, radius, isFull) {
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.fillStyle = pen.strokeStyle = colour;
    isFull ? pen.fill() : pen.stroke();
  }

  // All of a line, faint, and what has been walked of it.
  function walk(pen, points, step, colour) {
    stroke(pen, points, colour, 1.5, 0.25);
    stroke(pen, points.slice(0, step + 1), colour, 2.2);
    circle(pen, points[step], colour, 4, true);
  }

  function begin(root, data) {
    const find = (name) => root.querySelector(`.moving-${name}`);
    const [rate, step, play] = [find("rate"), find("step"), find("play")];
    const loss = ([x, y]) => (1 - x) ** 2 + data.bend * (y - x * x) ** 2;
    const [names, paths] = [Object.keys(data.optimizers), {}];
    for (const k of names) paths[k] = decode(data.optimizers[k][1], data.steps + 1, data.scale);
    const start = paths[names[0]][0][0];
    const [slots, chosen] = [Array(MOST).fill(null), []]; // by colour, and by age
    let frame; // of the animation, while it runs

    function shown() {
      const path = (name) => paths[name][paths[name].length > 1 ? rate.value : 0];
      return slots.flatMap((name, slot) => (name ? [{ name, slot, path: path(name) }] : []));
    }

    function level(value) {
      return Array.from({ length: 241 }, (_, i) => {
        const x = 1 - Math.sqrt(value) * Math.cos((i / 120) * Math.PI);
        const away = Math.sqrt(Math.max(value - (1 - x) ** 2, 0) / data.bend);
        return [x, x * x + (i < 120 ? away : -away)];
      });
    }

    function drawValley(ink, colours) {
      const { pen, width, height } = open(find("valley")); // x from -2 to 2, y from -1 to 3
      const place = ([x, y]) => [((x + 2) / 4) * width, ((3 - y) / 4) * height];
      for (let i = -6; i < 4; i++) stroke(pen, level(loss(start) * 3 ** i).map(place), ink, 1, 0.2);
      const [x, y] = place([1, 1]);
      for (const z of [6, -6]) stroke(pen, [[x - 6, y - z], [x + 6, y + z]], ink, 1.5);
      for (const { slot, path } of shown()) walk(pen, path.map(place), +step.value, colours[slot]);
      circle(pen, place(start), ink, 6, false);
    }

    function drawLoss(ink, colours) {
      const { pen, width, height } = open(find("loss"));
      const across = (i) => 44 + (i / data.steps) * (width - 60);
      const down = (k) => 14 + ((HIGH - Math.max(k, LOW)) / (HIGH - LOW)) * (height - 44);
      [pen.fillStyle, pen.textAlign] = [ink, "right"];
      for (let k = LOW; k <= HIGH; k += 2) {
        stroke(pen, [[across(0), down(k)], [across(data.steps), down(k)]], ink, 1, 0.15);
        pen.fillText(Math.abs(k) > 2 ? `1e${k}` : 10 ** k, across(0) - 8, down(k) + 4);
      }
      pen.textAlign = "center";
      for (const i of [0, data.steps / 2, data.steps]) pen.fillText(i, across(i), height - 8);
      for (const { slot, path } of shown()) {
        const points = path.map((p, i) => [across(i), down(Math.log10(loss(p)))]);
        walk(pen, points, +step.value, colours[slot]);
      }
    }

    function entry({ name, slot, path }) {
      const [best, value] = [data.optimizers[name][0], loss(path[step.value])];
      const times = data.multiples[rate.value];
      const at = best === null ? "" : ` at ${+(best * times).toPrecision(3)}`;
      const said = value < 10 ** LOW ? "below 1e-6" : value.toPrecision(2);
      const item = made("li", `${name}${at}: loss ${said}`);
      item.style.setProperty("--colour", `var(--moving-${slot})`);
      return item;
    }

    function draw() {
      const css = getComputedStyle(root);
      const colours = slots.map((_, i) => css.getPropertyValue(`--moving-${i}`));
      rate.nextElementSibling.value = `${["¼", "½", "1", "2", "4"][rate.value]} × best`;
      rate.setAttribute("aria-valuetext", rate.nextElementSibling.value);
      step.nextElementSibling.value = step.value;
      drawValley(css.color, colours);
      drawLoss(css.color, colours);
      find("legend").replaceChildren(...shown().map(entry));
      for (const chip of find("choose").children) {
        const slot = slots.indexOf(chip.textContent);
        chip.setAttribute("aria-pressed", slot >= 0);
        chip.style.setProperty("--colour", `var(--moving-${slot})`);
      }
    }

    function toggle(name) {
      const isNew = !slots.includes(name);
      if (!isNew || chosen.length === MOST) {
        const [old] = chosen.splice(isNew ? 0 : chosen.indexOf(name), 1);
        slots[slots.indexOf(old)] = null;
      }
      if (isNew) slots[slots.indexOf(null)] = chosen[chosen.push(name) - 1];
    }

    function pause() {
      frame = cancelAnimationFrame(frame);
      play.textContent = "Play";
    }

    function run() {
      const [begun, from] = [performance.now(), +step.value % data.steps];
      const tick = (now) => {
        step.value = Math.round(from + Math.max(now - begun, 0) / 40);
        draw();
        +step.value < data.steps ? (frame = requestAnimationFrame(tick)) : pause();
      };
      play.textContent = "Pause";
      frame = requestAnimationFrame(tick);
    }

    for (const name of names) {
      const chip = made("button", name);
      chip.addEventListener("click", () => (toggle(name), draw()));
      find("choose").append(chip);
    }
    FIRST.filter((name) => names.includes(name)).forEach(toggle);
    [rate.max, rate.value] = [data.multiples.length - 1, data.multiples.indexOf(1)];
    step.max = step.value = data.steps;
    rate.addEventListener("input", draw);
    step.addEventListener("input", () => (pause(), draw()));
    play.addEventListener("click", () => (frame ? pause() : run()));
    new ResizeObserver(draw).observe(find("pictures"));
    new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  }

  addEventListener("DOMContentLoaded", async () => {
    const root = document.getElementById("moving");
    if (root) begin(root, await (await fetch(source)).json());
  });
})();
