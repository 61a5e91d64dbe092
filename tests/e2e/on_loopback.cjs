// Loaded before a server that has no option for it: it then listens on this machine's own address alone.
const { Server } = require("node:net");

const listen = Server.prototype.listen;
Server.prototype.listen = function (first, ...rest) {
  const options = first !== null && typeof first === "object" ? first : { port: first };
  return listen.call(this, { ...options, host: "127.0.0.1" }, ...rest);
};
