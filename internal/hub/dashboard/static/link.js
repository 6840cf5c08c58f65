// The secret of a one-time link stands behind the # of its address, which the browser sends to
// nobody. It goes into the form, and out of the address.
(function () {
  var box = document.querySelector("[data-code]");
  var secret = location.hash.slice(1);
  if (!box || !secret) return;
  box.querySelector("input").value = secret;
  box.classList.add("known");
  history.replaceState(null, "", location.pathname);
})();
