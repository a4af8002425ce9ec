(function(){"use strict";
document.documentElement.classList.add("on");
var live=document.getElementById("live"),state=document.getElementById("link"),address=new URL(location.href);
address.searchParams.set("part","1");address.searchParams.delete("token");
function ask(){fetch(address,{cache:"no-store",credentials:"same-origin"}).then(function(r){
 if(!r.ok)throw new Error(r.status);return r.text();}).then(function(t){live.innerHTML=t;state.textContent="live";state.className="tag yes";})
 .catch(function(){state.textContent="no answer, trying again";state.className="tag no";})
 .finally(function(){setTimeout(ask,1500);});}
setTimeout(ask,1500);
var theme=document.getElementById("theme"),root=document.documentElement;
theme.addEventListener("click",function(){var d=root.dataset.theme?root.dataset.theme==="dark":matchMedia("(prefers-color-scheme: dark)").matches;
root.dataset.theme=d?"light":"dark";});
})();
