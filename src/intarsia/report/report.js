(function(){
"use strict";
var root=document.documentElement;root.classList.add("on");
var theme=document.getElementById("theme");
if(theme){theme.addEventListener("click",function(){
 var dark=root.dataset.theme?root.dataset.theme==="dark":matchMedia("(prefers-color-scheme: dark)").matches;
 root.dataset.theme=dark?"light":"dark";});}
var table=document.getElementById("features");
if(table){
 var body=table.tBodies[0],rows=Array.prototype.slice.call(body.rows),search=document.getElementById("q"),
  top=document.getElementById("k"),count=document.getElementById("count"),order=rows.slice();
 rows.forEach(function(r,i){r.rank=i;r.words=r.textContent.toLowerCase();});
 var show=function(){
  var q=search.value.trim().toLowerCase().split(/\s+/).filter(Boolean),k=top.value,shown=0;
  rows.forEach(function(r){
   var fits=q.every(function(w){return r.words.indexOf(w)>=0;});
   if(!q.length){fits=k==="all"||(k==="sel"?!r.classList.contains("rest"):r.rank<+k);}
   r.hidden=!fits;if(fits)shown++;});
  count.textContent=shown+" of "+rows.length+" listed";};
 var value=function(row,i,kind){var c=row.cells[i];return kind==="num"?parseFloat(c.dataset.v||c.textContent):c.textContent.toLowerCase();};
 Array.prototype.forEach.call(table.tHead.rows[0].cells,function(th,i){
  var kind=th.dataset.sort;if(!kind)return;
  var b=document.createElement("button");b.type="button";while(th.firstChild)b.appendChild(th.firstChild);th.appendChild(b);
  th.setAttribute("aria-sort","none");
  b.addEventListener("click",function(){
   var down=th.getAttribute("aria-sort")==="ascending"?-1:1;
   Array.prototype.forEach.call(table.tHead.rows[0].cells,function(o){if(o.dataset.sort)o.setAttribute("aria-sort","none");});
   th.setAttribute("aria-sort",down>0?"ascending":"descending");
   order.sort(function(a,b2){var x=value(a,i,kind),y=value(b2,i,kind);
    var c=kind==="num"?(x-y):x.localeCompare(y);return c*down||a.rank-b2.rank;});
   order.forEach(function(r){body.appendChild(r);});});});
 search.addEventListener("input",show);top.addEventListener("change",show);
 top.value="all";show();
}
addEventListener("beforeprint",function(){document.querySelectorAll("details").forEach(function(d){d.open=true;});});
})();
