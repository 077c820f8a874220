-- Compare-and-pass: frees the lock if it is still ours; keeps our place in its queue.
-- A lock is freed by passing it on: its key is reserved for the first place in the queue whose
-- process receives the call, and deleted if there is none.
-- Readers hold a lock together (see share.lua). A place that ends in ':shared' is one of theirs:
-- those that follow one another are passed the lock together, as members 'quorlock:next:' .. place,
-- and also while others read. The last reader that goes passes the lock on.
-- KEYS[1] lock key, and any further ones: each of them that is ours is freed
-- ARGV[1] token; '' for none
-- ARGV[2] our place in the queue of KEYS[1] and ARGV[3] its ticket, or neither; a ticket of
--   0 queues it behind all others, unless it is queued; n > 0 queues it with this ticket;
--   -1 removes it; n < -1 changes its ticket to -n if it is queued, and does nothing else
-- returns -3 it was ours and is freed, -2 absent,
--         -1 another's that does not expire, n >= 0 another's that expires in n ms,
--         {-1 or n, owner} if the other token is 32 hexadecimal digits, '@' and its owner; of
--         readers the owner is '*', their number, and for each of the last four ' ' and its owner
--   with a place {one of these numbers, owner or '', ticket (0: not queued), places before ours
--   (-1: ours is not in the queue)}; a key that is reserved for our place is ours, but if we only
--   look (no token, n > 0) we are called again; an absent key is passed on when we queue
--   of several keys {number, owner or ''} or the four with a place, and how many keys are before the
--   one that is reported: the first of another's, else the first absent one, else none (-3)
-- errors  WRONGTYPE: a key holds another type of data; nothing is changed then
--         READONLY: of a replica, also if there is nothing to free
-- The queue never prevents a release: its errors (another type, no right, no memory) are ignored.
-- Short names: the first release on a connection is sent in full, behind acquires (UNREAD_MAX).
local call, try = redis.call, redis.pcall
local place, action = ARGV[2], tonumber(ARGV[3])
local mine = 'quorlock:queue:' .. KEYS[1]
local next = 'quorlock:next:'
if #KEYS + #ARGV == 2 and ARGV[1] ~= '' and try('GET', KEYS[1]) == ARGV[1] then
  -- As nearly always: ours, and the first waiter receives the call, or nobody waits.
  local first = try('ZPOPMIN', mine)
  if not first[1] then
    call('DEL', KEYS[1])
    return -3
  end
  local inbox, ms = first[1]:match('^(%x+):%d+:(%d+)$')
  local heard = inbox and try('PUBLISH', 'quorlock:inbox:' .. inbox, first[1] .. ' ' .. KEYS[1])
  if tonumber(heard) and heard > 0 then
    if try('SET', KEYS[1], next .. first[1], 'PX', ms).err then
      call('DEL', KEYS[1])
    end
    return -3
  end
  -- It is a reader, or no process receives the call.
  try('ZADD', mine, first[2], first[1])
end
local function now()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
local kept = place and next .. place
local held, shared, ready = {}, {}
for i, key in ipairs(KEYS) do
  local holder = try('GET', key)
  if type(holder) == 'table' then
    if not holder.err:find('WRONGTYPE') then
      return holder
    end
    holder = tonumber(call('ZSCORE', key, ARGV[1]) or -1) >= now() and ARGV[1] or ''
    ready = ready or i == 1 and place and call('ZSCORE', key, kept)
    -- Without a ttl and us (PERSIST keeps us) it is data of another program.
    shared[i] = holder ~= '' or ready or call('PTTL', key) >= 0
  end
  held[i] = holder
end
ready = ready or place and held[1] == kept
-- Returns how many connections receive it (-1: no right), and the ms of the reservation.
local function publish(waiter, text)
  local inbox, ms = waiter:gsub(':shared$', ''):match('^(%x+):%d+:(%d+)$')
  local heard = inbox and try('PUBLISH', 'quorlock:inbox:' .. inbox, text)
  return type(heard) == 'table' and -1 or heard or 0, ms
end
-- Returns whether the first waiter wants the lock alone; removes those that are gone.
local function barred(queue)
  local first = try('ZRANGE', queue, 0, 0)[1]
  -- An empty text shows whether its process is there.
  return first and not first:find(':shared$')
    and (first == place or publish(first, '') ~= 0 or try('ZREM', queue, first) ~= 1 or barred(queue))
end
-- The digits before it are the proof of ownership. For the lengths see _core/owner.py.
local function owner_of(token)
  return #token <= 161 and token:match('^%x+()@') == 33 and token:sub(34) or ''
end
-- The look crosses our call, or that was lost. A newcomer may have a smaller ticket by now.
if ready and action > 0 and ARGV[1] == '' and publish(place, place .. ' ' .. KEYS[1]) > 0 then
  return { call('PTTL', KEYS[1]), '', action, 0, KEYS[2] and 0 }
end
local joins, ticket = place and action >= 0, 0
if joins then
  local added
  if action > 0 then
    ticket = action
    added = try('ZADD', mine, ARGV[3], place)
  else
    local last = try('ZRANGE', mine, -1, -1, 'WITHSCORES')
    ticket = math.min(math.max(tonumber(last[2]) or 0, 0), 2 ^ 52) + 1
    added = last.err and last or try('ZADD', mine, 'NX', ticket, place)
    if added == 0 then
      ticket = math.min(math.max(tonumber(try('ZADD', mine, 'XX', 'INCR', 0, place)) or 0, 0), 2 ^ 53)
    end
  end
  ticket = type(added) == 'number' and try('PEXPIRE', mine, 60000) and ticket or 0
elseif action == -1 then
  try('ZREM', mine, place)
elseif place then
  try('ZADD', mine, 'XX', ARGV[3]:sub(2), place)
end
local left, owner, before = -3, '', 0
for i, key in ipairs(KEYS) do
  local holder, queue = held[i], 'quorlock:queue:' .. key
  local ours = holder == ARGV[1] and holder ~= '' or i == 1 and ready and action >= -1
  local read, given = shared[i]
  if ours and read then
    call('ZREM', key, ARGV[1], i == 1 and ready and kept or ARGV[1])
    -- No longer than those that are left.
    local last = tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2] or 0) - now()
    call('PEXPIRE', key, last)
    read = last > 0
  end
  local is_free = not read and (ours or i == 1 and joins and not holder)
  while (is_free or i == 1 and joins and read) and not (read and barred(queue)) do
    local first = try('ZPOPMIN', queue)
    if not first[1] then
      break
    end
    local heard, ms = publish(first[1], first[1] .. ' ' .. key)
    if heard < 0 then
      -- We may not call: its process finds out when it looks.
      try('ZADD', queue, first[2], first[1])
      try('PEXPIRE', queue, 60000)
      break
    elseif heard > 0 and first[1]:find(':shared$') then
      ms = math.min(tonumber(ms), 60000)
      if not read then
        try('DEL', key)
      end
      read, given = true, true
      try('ZADD', key, now() + ms, next .. first[1])
      if call('PTTL', key) < ms then
        try('PEXPIRE', key, ms)
      end
    elseif heard > 0 then
      given = not try('SET', key, next .. first[1], 'PX', ms).err
      -- If it fails: it has been called, and finds the key absent.
      break
    elseif first[1] == place then
      -- We cannot be called.
      ticket = 0
    end
    -- No process receives the call: the place is of one that is gone, and removed.
  end
  if ours and not shared[i] and not given then
    call('DEL', key)
  end
  local found = ours and -3 or call('PTTL', key)
  -- Deletes nothing. A replica refuses it: the absent key is another master's. Other refusals (no
  -- good replicas, no room on the disk) say nothing about the lock.
  local bad = found == -2 and try('DEL', key)
  if bad and bad ~= 0 and bad.err:find('READONLY') then
    return bad
  end
  if left == -3 and not ours or left == -2 and found > -2 then
    left, before = found, i - 1
    owner = owner_of(holder or '')
    if shared[i] then
      owner = '*' .. call('ZCARD', key)
      for _, token in ipairs(call('ZRANGE', key, -4, -1)) do
        owner = owner .. ' ' .. owner_of(token)
      end
    end
  end
end
if not place then
  return KEYS[2] and { left, owner, before } or owner ~= '' and { left, owner } or left
end
local ahead = try('ZRANK', mine, place)
if type(ahead) ~= 'number' then
  ahead = -1
elseif action < -1 then
  ticket = -action
end
return { left, owner, ticket, ahead, KEYS[2] and before }
