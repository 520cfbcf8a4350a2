"use strict";
(() => {
  const place = document.getElementById("figures");
  const systemDark = matchMedia("(prefers-color-scheme: dark)");

  function draw() {
    document.documentElement.dataset.theme = systemDark.matches ? "dark" : "light";
    const style = getComputedStyle(document.documentElement);
    const [ink, line] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
    const words = { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line };
    const config = {
      background: "transparent", axis: words, legend: words, header: words, title: { color: ink }, view: { stroke: line },
    };
    const actions = { export: true, source: false, compiled: false, editor: false };
    const specs = JSON.parse(document.getElementById("data").textContent);
    const narrow = place.clientWidth < 900;
    const drawn = Object.entries(specs).map(([name, spec]) => {
      const figure = document.createElement("figure");
      const mount = document.createElement("div");
      figure.id = "figure-" + name;
      figure.setAttribute("aria-label", name.replaceAll("-", " "));
      figure.append(mount);
      if (narrow && spec.columns) spec.columns = 1;
      if (typeof spec.width === "number") spec.width = Math.min(spec.width, Math.max(180, place.clientWidth - 160));
      vegaEmbed(mount, spec, { ast: true, config, actions, renderer: "svg", downloadFileName: "attnbench-" + name })
        .then(() => { figure.dataset.ready = "yes"; })
        .catch((error) => { mount.textContent = "This figure cannot be drawn: " + error; console.error(error); });
      return figure;
    });
    place.replaceChildren(...drawn);
  }

  systemDark.addEventListener("change", draw);
  draw();
})();
