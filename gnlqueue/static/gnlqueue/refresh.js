/* Replaces what is marked data-gq-live with what the server shows now, every few seconds. Without it the page stays as
   it is.

   It waits while the tab is hidden, while a box is ticked or a form field has the focus, while text is selected or the
   pointer is down: nobody loses what they are doing. */
"use strict";
{
  const KEY = "gnlqueue.refresh";
  const CHOICES = ["0", "2", "5", "15", "60"];
  const IDLE_CHECK = 1000; // ms between two checks whether somebody is still busy

  let control, select, status;
  const live = () => document.querySelector("[data-gq-live]");
  const FOCUSABLE = "a[href], button, summary, input, select, textarea, [tabindex]";

  let timer = null;
  let pointerIsDown = false;
  let running = null;

  const stored = () => {
    const asked = new URLSearchParams(location.search).get("refresh");
    if (CHOICES.includes(asked)) {
      return asked;
    }
    try {
      const kept = localStorage.getItem(KEY);
      return CHOICES.includes(kept) ? kept : null;
    } catch {
      return null; // storage is not allowed: the choice lasts as long as the page
    }
  };

  const store = (value) => {
    try {
      localStorage.setItem(KEY, value);
    } catch {
      // see above
    }
  };

  const say = (text) => {
    if (status.textContent !== text) {
      status.textContent = text;
    }
  };

  const busy = () => {
    const region = live();
    const focused = document.activeElement;
    const selection = document.getSelection();
    return (
      document.hidden ||
      pointerIsDown ||
      region.querySelector("input[type=checkbox]:checked") !== null ||
      (region.contains(focused) && focused.matches("input, select, textarea")) ||
      (selection && !selection.isCollapsed && region.contains(selection.anchorNode))
    );
  };

  /* Open <details> stay open, and the focus stays where it was. */
  const replace = (region, fresh) => {
    const open = [...region.querySelectorAll("details[open][id]")].map((each) => each.id);
    const place = [...region.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
    const id = place < 0 ? "" : document.activeElement.id;
    region.replaceChildren(...[...fresh.childNodes].map((node) => document.adoptNode(node)));
    for (const each of open) {
      const details = document.getElementById(each);
      if (details) {
        details.open = true;
      }
    }
    if (place >= 0) {
      const again = (id && document.getElementById(id)) || region.querySelectorAll(FOCUSABLE)[place];
      if (again) {
        again.focus({ preventScroll: true });
      }
    }
  };

  const refresh = async () => {
    running = new AbortController();
    try {
      const response = await fetch(location.href, {
        credentials: "same-origin",
        headers: { "X-Requested-With": "XMLHttpRequest" },
        signal: running.signal,
      });
      if (!response.ok || response.redirected) {
        throw new Error(String(response.status));
      }
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.querySelector("[data-gq-live]");
      if (fresh && live() && !busy()) {
        replace(live(), fresh);
        say("");
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        say(control.dataset.gqFailed);
      }
    } finally {
      running = null;
    }
  };

  const schedule = (wait) => {
    clearTimeout(timer);
    timer = wait > 0 ? setTimeout(tick, wait) : null;
  };

  const tick = async () => {
    const seconds = Number(select.value);
    if (!seconds) {
      return;
    }
    if (busy()) {
      if (!document.hidden) {
        say(control.dataset.gqPaused);
      }
      schedule(IDLE_CHECK);
      return;
    }
    await refresh();
    schedule(Number(select.value) * 1000);
  };

  const start = () => {
    control = document.querySelector("[data-gq-refresh]");
    if (!control || !live()) {
      return;
    }
    select = control.querySelector("select");
    status = control.querySelector("[data-gq-refresh-status]");
    control.hidden = false;
    select.value = stored() ?? select.value;
    select.addEventListener("change", () => {
      store(select.value);
      say("");
      if (running) {
        running.abort();
      }
      schedule(Number(select.value) * 1000);
    });
    document.addEventListener("pointerdown", () => { pointerIsDown = true; });
    for (const name of ["pointerup", "pointercancel", "dragend"]) {
      document.addEventListener(name, () => { pointerIsDown = false; });
    }
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && Number(select.value)) {
        schedule(IDLE_CHECK);
      }
    });
    schedule(Number(select.value) * 1000);
  };

  if (document.readyState === "loading") {
    document.addEventListener("DOMContentLoaded", start);
  } else {
    start();
  }
}
