-- Compare-and-expire: lets a lock that is still ours live at least ARGV[2] ms from now.
-- KEYS[1] lock key, and any further ones: they are extended together, if all of them are ours; of a
--   lock that is shared (see share.lua) one reader is extended, and KEYS[1] is the only key
-- ARGV[1] token  ARGV[2] ttl in ms  ARGV[3] '1': the token is a reader's; else not given
-- returns 1 extended (or would live longer anyway), 0 one is held by another, -1 one is absent; of a
--   reader also -1 if others are there, and it is not
-- errors  WRONGTYPE: a key holds another type of data; nothing is changed then
--         READONLY: of a replica, also if there is nothing to extend
local extended = 1
for _, key in ipairs(KEYS) do
  local holder = redis.pcall('GET', key)
  if type(holder) == 'table' then
    local ends = redis.pcall('ZSCORE', key, ARGV[1])
    local why = type(ends) == 'table' and ends.err or ''
    if string.find(why, 'WRONGTYPE') or not string.find(holder.err, 'WRONGTYPE') then
      redis.call('GET', key)
    end
    local time = redis.call('TIME')
    local ms = time[1] * 1000 + math.floor(time[2] / 1000)
    ends = type(ends) == 'string' and tonumber(ends) or -1
    if ends < ms or KEYS[2] then
      return ARGV[3] and -1 or 0
    end
    if ends < ms + ARGV[2] then
      redis.call('ZADD', key, ms + ARGV[2], ARGV[1])
    end
    if redis.call('PTTL', key) < tonumber(ARGV[2]) then
      -- Nothing is read after it: each extension would be reported to all other readers.
      redis.call('PEXPIRE', key, ARGV[2])
    end
    return 1
  end
  if holder and holder ~= ARGV[1] then
    return 0
  end
  if not holder then
    extended = -1
    -- Deletes nothing. A replica refuses it: the absent key is another master's. Other refusals
    -- (no good replicas, no room on the disk) say nothing about the lock.
    local refused = redis.pcall('DEL', key)
    if type(refused) == 'table' and string.find(refused.err, 'READONLY') then
      return refused
    end
  end
end
if extended == -1 then
  return -1
end
for _, key in ipairs(KEYS) do
  -- Never shorten: a late, shorter extension may arrive over another connection.
  if redis.call('PTTL', key) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', key, ARGV[2])
    -- Read last: who tracks the keys that it reads is told no more of one that was changed since.
    redis.call('PTTL', key)
  end
end
return 1
