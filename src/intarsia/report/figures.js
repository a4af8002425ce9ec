(function(){
"use strict";
var root=document.documentElement,SHARP=3,MOST=16000,
 LOOK=["fill","fill-opacity","stroke","stroke-width","stroke-dasharray","stroke-linecap","opacity","font-family","font-size","font-weight","text-anchor"];
/* A figure that stands alone: what the page's style says of each piece becomes its own attribute, in the light colours of paper. */
function alone(svg){
 var theme=root.dataset.theme;root.dataset.theme="light";
 var out=svg.cloneNode(true),from=svg.querySelectorAll("*"),to=out.querySelectorAll("*"),seen=svg.getBBox(),box=svg.viewBox.baseVal,
  x=Math.min(box.x,seen.x),y=Math.min(box.y,seen.y),w=Math.max(box.x+box.width,seen.x+seen.width)-x,h=Math.max(box.y+box.height,seen.y+seen.height)-y;
 var wear=function(old,now){
  if(/^(title|defs)$/.test(old.tagName))return;
  var style=getComputedStyle(old);
  LOOK.forEach(function(k){now.setAttribute(k,style.getPropertyValue(k));});
  now.removeAttribute("class");now.removeAttribute("style");};
 wear(svg,out);
 for(var i=0;i<from.length;i++)wear(from[i],to[i]);
 if(theme)root.dataset.theme=theme;else delete root.dataset.theme;
 out.setAttribute("viewBox",[x,y,w,h].join(" "));out.setAttribute("width",w);out.setAttribute("height",h);
 var title=document.createElementNS(svg.namespaceURI,"title");
 title.textContent=svg.getAttribute("aria-label");out.insertBefore(title,out.firstChild);
 return {text:new XMLSerializer().serializeToString(out),w:w,h:h};}
function keep(blob,name){
 var a=document.createElement("a");a.href=URL.createObjectURL(blob);a.download=name;
 document.body.appendChild(a);a.click();a.remove();
 setTimeout(function(){URL.revokeObjectURL(a.href);},10000);}
function asSvg(svg,name){keep(new Blob([alone(svg).text],{type:"image/svg+xml"}),name+".svg");}
function asPng(svg,name){
 var made=alone(svg),scale=Math.min(SHARP,MOST/Math.max(made.w,made.h)),image=new Image();
 image.onload=function(){
  var canvas=document.createElement("canvas"),pen=canvas.getContext("2d");
  canvas.width=Math.round(made.w*scale);canvas.height=Math.round(made.h*scale);
  pen.fillStyle="#fff";pen.fillRect(0,0,canvas.width,canvas.height);
  pen.drawImage(image,0,0,canvas.width,canvas.height);
  canvas.toBlob(function(blob){keep(blob,name+".png");},"image/png");};
 image.src="data:image/svg+xml;charset=utf-8,"+encodeURIComponent(made.text);}
document.querySelectorAll("main svg.chart:not(.mini)").forEach(function(svg,i){
 var what=svg.getAttribute("aria-label")||"figure",place=svg.closest(".scroll,.circle")||svg,row=document.createElement("p"),
  name=what.split(/[.:;(]/)[0].trim().toLowerCase().replace(/[^a-z0-9]+/g,"-").slice(0,48).replace(/^-|-$/g,"")+"-"+(i+1);
 row.className="save";
 [["SVG",asSvg],["PNG",asPng]].forEach(function(form){
  var b=document.createElement("button");b.type="button";b.textContent=form[0];
  b.setAttribute("aria-label","Save as "+form[0]+": "+what.slice(0,60));
  b.addEventListener("click",function(){form[1](svg,name);});row.appendChild(b);});
 place.insertAdjacentElement("afterend",row);});
})();
