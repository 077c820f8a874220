-- Compare-and-pass: frees the lock if it is still ours; keeps our place in its queue.
-- A lock is freed by passing it on: its key is reserved for the first place in the queue whose
-- process hears the call, and deleted if there is none.
-- KEYS[1] lock key  ARGV[1] token; '' for none
-- ARGV[2] our place and ARGV[3] its ticket, or neither; a ticket of
--   0 queues it behind all others, unless it is queued; n > 0 queues it with this ticket;
--   -1 removes it; n < -1 changes its ticket to -n if it is queued, and does nothing else
-- returns -3 it was ours and is freed, -2 absent,
--         -1 another's that does not expire, n >= 0 another's that expires in n ms,
--         {-1 or n, owner} if the other token is 32 hexadecimal digits, '@' and its owner
--   with a place {one of these numbers, owner or '', ticket (0: not queued), places before ours
--   (-1: ours is not in the queue)}; a key that is reserved for our place is ours; an absent key is
--   passed on when we queue
-- errors  WRONGTYPE: the key holds another type of data; nothing is changed then
-- The queue never prevents a release: its errors (another type, no right, no memory) are ignored.
local holder = redis.call('GET', KEYS[1])
local queue = 'quorlock:queue:' .. KEYS[1]
local place, action = ARGV[2], tonumber(ARGV[3])
local ours = holder == ARGV[1] and holder ~= ''
local queues, ticket = place and action >= 0, 0
if queues then
  local added
  if action > 0 then
    ticket = action
    added = redis.pcall('ZADD', queue, ARGV[3], place)
  else
    local last = redis.pcall('ZRANGE', queue, -1, -1, 'WITHSCORES')
    ticket = math.min(math.max(tonumber(last[2]) or 0, 0), 2 ^ 52) + 1
    added = last.err and last or redis.pcall('ZADD', queue, 'NX', ticket, place)
    if added == 0 then
      ticket = tonumber(redis.pcall('ZADD', queue, 'XX', 'INCR', 0, place)) or 0
      ticket = math.min(math.max(ticket, 0), 2 ^ 53)
    end
  end
  if type(added) == 'number' then
    redis.pcall('PEXPIRE', queue, 60000)
  else
    ticket = 0
  end
elseif action == -1 then
  redis.pcall('ZREM', queue, place)
elseif place then
  redis.pcall('ZADD', queue, 'XX', string.sub(ARGV[3], 2), place)
end
if place and action >= -1 and holder == 'quorlock:next:' .. place then
  ours = true
end
local reserved = false
while (ours or queues and not holder) and not reserved do
  local first = redis.pcall('ZPOPMIN', queue)
  if not first[1] then
    break
  end
  local inbox, ms = string.match(first[1], '^(%x+):%d+:(%d+)$')
  local call = first[1] .. ' ' .. KEYS[1]
  local heard = inbox and redis.pcall('PUBLISH', 'quorlock:inbox:' .. inbox, call) or 0
  if type(heard) ~= 'number' then
    -- We may not call: its process finds out when it looks.
    redis.pcall('ZADD', queue, first[2], first[1])
    redis.pcall('PEXPIRE', queue, 60000)
    break
  elseif heard > 0 then
    reserved = not redis.pcall('SET', KEYS[1], 'quorlock:next:' .. first[1], 'PX', ms).err
    if not reserved then
      -- It has been called, and finds the key absent.
      break
    end
  elseif first[1] == place then
    -- We cannot be called.
    ticket = 0
  end
  -- No process hears the call: the place is of one that is gone, and removed.
end
if ours and not reserved then
  redis.call('DEL', KEYS[1])
end
if ours and not place then
  return -3
end
local left = ours and -3 or redis.call('PTTL', KEYS[1])
-- The owner only: the digits are the proof of ownership. For the lengths see _core/owner.py.
local _, separator = string.find(holder and #holder <= 161 and holder or '', '^%x+@')
local owner = ''
if separator == 33 and not ours then
  owner = string.sub(holder, 34)
end
if not place then
  return owner ~= '' and { left, owner } or left
end
local ahead = redis.pcall('ZRANK', queue, place)
if type(ahead) ~= 'number' then
  ahead = -1
elseif action < -1 then
  ticket = -action
end
return { left, owner, ticket, ahead }
