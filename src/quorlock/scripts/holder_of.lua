-- A part of other scripts: the token at a lock key, false for none, true for readers, who hold it
-- together. An error of another kind, or another type of data, ends the script.
local function holder_of(key)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then
    local count = redis.pcall('ZCARD', key)
    local why = type(count) == 'table' and count.err or ''
    if string.find(why, 'WRONGTYPE') or not string.find(value.err, 'WRONGTYPE') then
      redis.call('GET', key)
    end
    return true
  end
  return value
end
