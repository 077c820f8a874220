-- Frees several locks at once, if all of them are ours and nobody waits for any; else nothing is
-- changed, and each is to be released by release.lua, which also hands a lock on.
-- KEYS lock keys  ARGV a token for each
-- returns -3 all are freed, 0 nothing is changed
local tokens, queues = redis.pcall('MGET', unpack(KEYS)), {}
for i, key in ipairs(KEYS) do
  if tokens[i] ~= ARGV[i] then
    return 0
  end
  queues[i] = 'quorlock:queue:' .. key
end
if redis.pcall('EXISTS', unpack(queues)) ~= 0 then
  return 0
end
redis.call('DEL', unpack(KEYS))
return -3
