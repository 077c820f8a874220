-- Compare-and-delete: frees the lock if it is still ours.
-- KEYS[1] lock key  ARGV[1] token
-- returns -3 it was ours and is deleted, -2 absent,
--         -1 another's that does not expire, n >= 0 another's that expires in n ms,
--         {-1 or n, owner} if the other token is 32 hexadecimal digits, '@' and its owner
-- errors  WRONGTYPE: the key holds another type of data; it is left alone
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return -3
end
local left = redis.call('PTTL', KEYS[1])
-- The owner only: the digits are the proof of ownership. For the lengths see _core/owner.py.
local _, separator = string.find(holder and #holder <= 161 and holder or '', '^%x+@')
if separator == 33 and #holder > 33 then
  return { left, string.sub(holder, 34) }
end
return left
