// SPDX-License-Identifier: Apache-2.0
// Gives the code to the coordinator. In a link it stands behind the #, which browsers send to nobody.
"use strict";
(() => {
  const field = document.getElementById("code");
  const answer = document.getElementById("answer");

  const logIn = async (code) => {
    answer.textContent = "…";
    try {
      const response = await fetch("/dashboard/login", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ code }),
      });
      if (response.ok) location.replace("/dashboard");
      else answer.textContent = await response.text();
    } catch {
      answer.textContent = "The coordinator does not answer: the run is over, or the network is down.";
    }
  };

  document.getElementById("login").addEventListener("submit", (event) => {
    event.preventDefault();
    logIn(field.value.trim());
  });

  const given = decodeURIComponent(location.hash.slice(1));
  if (given) {
    history.replaceState(null, "", location.pathname); // it is good once, and not for the history
    logIn(given);
  }
})();
